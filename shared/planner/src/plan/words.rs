//! Closed sets of words, as they stand in records, on the wire and in metric labels.

/// A word that is not in its closed set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is no {set}")]
pub struct UnknownWord {
    /// The closed set.
    pub set: &'static str,
    /// The word.
    pub word: String,
}

macro_rules! closed_set {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The word for it in records and on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::plan::UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|known| known.as_str() == word).ok_or_else(|| {
                    $crate::plan::UnknownWord { set: stringify!($name), word: word.to_owned() }
                })
            }
        }
    };
}

pub(crate) use closed_set;

#[cfg(test)]
mod tests {
    use crate::plan::{DecidedBy, Flag, Reason, RequestSource, Rule, UnknownWord};
    use std::{fmt::Debug, str::FromStr};

    fn reads_back<T: Debug + PartialEq + Copy + ToString + FromStr<Err = UnknownWord>>(all: &[T]) {
        for word in all {
            assert_eq!(word.to_string().parse(), Ok(*word));
        }
        assert_eq!("".parse::<T>().unwrap_err().word, "");
    }

    #[test]
    fn every_word_reads_back_as_itself() {
        reads_back(Flag::ALL);
        reads_back(RequestSource::ALL);
        reads_back(DecidedBy::ALL);
        reads_back(Reason::ALL);
        reads_back(Rule::ALL);
    }
}
