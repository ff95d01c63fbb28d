//! A line of the table.

use std::fmt::Write;

use serde_json::{Value, json};

/// One figure against its budget.
#[derive(Clone, Debug)]
pub struct Row {
    /// Id of the budget: "hook-latency-p50".
    pub id: String,
    /// What was measured, and how.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// "ms", "µs", "MiB", "ratio".
    pub unit: &'static str,
    /// What it is measured against, in the same unit; none: an absolute budget.
    pub floor: Option<f64>,
    /// Most that `value / floor` (without a floor: `value`) may be.
    pub budget: f64,
}

// === impl Row ===

impl Row {
    /// `value / floor`, where there is a floor.
    pub fn ratio(&self) -> Option<f64> {
        self.floor.map(|floor| self.value / floor)
    }

    /// Whether the budget is kept.
    pub fn holds(&self) -> bool {
        self.ratio().unwrap_or(self.value) <= self.budget
    }

    fn budget_text(&self) -> String {
        match self.floor {
            Some(_) => format!("≤ {} × floor", self.budget),
            None => format!("≤ {} {}", self.budget, self.unit),
        }
    }

    /// As `bench.json` holds it.
    pub fn json(&self) -> Value {
        let round = |x: f64| (x * 1000.0).round() / 1000.0;
        json!({
            "id": self.id,
            "what": self.what,
            "value": round(self.value),
            "unit": self.unit,
            "floor": self.floor.map(round),
            "ratio": self.ratio().map(round),
            "budget": self.budget_text(),
            "holds": self.holds(),
        })
    }
}

/// The rows for people, a line of explanation under each.
pub fn table(rows: &[Row]) -> String {
    let mut out =
        format!("{:<28} {:>12} {:>12} {:>7}  {:<14} holds\n", "id", "value", "floor", "ratio", "budget");
    for row in rows {
        let floor = row.floor.map_or_else(|| "–".to_owned(), |f| format!("{f:.3} {}", row.unit));
        let ratio = row.ratio().map_or_else(|| "–".to_owned(), |r| format!("{r:.2}"));
        let value = format!("{:.3} {}", row.value, row.unit);
        let holds = if row.holds() { "yes" } else { "NO" };
        let _ = writeln!(
            out,
            "{:<28} {value:>12} {floor:>12} {ratio:>7}  {:<14} {holds}\n    {}",
            row.id,
            row.budget_text(),
            row.what
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f64, floor: Option<f64>) -> Row {
        Row { id: "x".into(), what: "y".into(), value, unit: "ms", floor, budget: 3.0 }
    }

    #[test]
    fn a_budget_is_of_the_ratio_where_there_is_a_floor() {
        assert!(row(6.0, Some(2.0)).holds());
        assert!(!row(6.1, Some(2.0)).holds());
        assert!(row(3.0, None).holds());
        assert!(!row(3.1, None).holds());
    }

    #[test]
    fn the_file_tells_all_columns() {
        let json = row(6.0, Some(2.0)).json();
        for key in ["id", "what", "value", "unit", "floor", "ratio", "budget", "holds"] {
            assert!(json.get(key).is_some(), "{key}");
        }
    }
}
