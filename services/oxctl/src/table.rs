//! Plain aligned columns.

/// Characters that a cell may show; the last column holds sentences. All of it is in `-o json`.
const WIDEST: usize = 120;
const WIDEST_LAST: usize = 1000;

/// A header and rows; printed with two spaces between columns and nothing at the ends of lines.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    /// Cells are never cut.
    whole: bool,
    rows: Vec<Vec<String>>,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), whole: false, rows: Vec::new() }
    }

    /// One whose cells are never cut, for whoever asks for all.
    pub(crate) fn whole(header: &[&'static str]) -> Self {
        Self { whole: true, ..Self::new(header) }
    }

    /// Appends a row with a cell for each column; an empty cell prints as "-".
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        let last = cells.len().saturating_sub(1);
        let whole = self.whole;
        let widest = |place| match place == last {
            _ if whole => usize::MAX,
            true => WIDEST_LAST,
            false => WIDEST,
        };
        let cells = cells.into_iter().enumerate().map(|(place, cell)| cut(printable(cell), widest(place)));
        self.rows.push(cells.collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn render(&self) -> String {
        let header: Vec<String> = self.header.iter().map(|h| (*h).to_owned()).collect();
        let lines: Vec<&Vec<String>> = [&header].into_iter().chain(&self.rows).collect();
        let mut widths = vec![0; self.header.len()];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line.iter()) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut out = String::new();
        for line in lines {
            let mut text = String::new();
            for (width, cell) in widths.iter().zip(line) {
                text.push_str(&format!("{cell:<width$}  "));
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Foreign text must not move the operator's cursor.
fn printable(cell: String) -> String {
    match cell.trim() {
        "" => "-".to_owned(),
        text => text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
    }
}

/// No foreign text may push the other columns off the screen.
fn cut(cell: String, widest: usize) -> String {
    match cell.char_indices().nth(widest) {
        None => cell,
        Some(_) => cell.chars().take(widest.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_cut_wherever_it_stands_and_however_long_it_is() {
        let mut table = Table::new(&["A", "B", "C"]);
        table.row(vec!["ü".repeat(WIDEST), "x".repeat(70_000), "y".repeat(70_000)]);
        let text = table.render();
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split("  ").collect();
        assert_eq!(cells[0], "ü".repeat(WIDEST));
        assert_eq!(cells[1], "x".repeat(WIDEST - 1) + "…");
        assert_eq!(cells[2], "y".repeat(WIDEST_LAST - 1) + "…");
    }

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_text() {
        let mut table = Table::new(&["POOL", "CPUS", "PODS"]);
        table.row(vec!["share".into(), "0-1".into(), "12".into()]);
        table.row(vec!["r".into(), String::new(), String::new()]);
        assert_eq!(table.render(), "POOL   CPUS  PODS\nshare  0-1   12\nr      -     -\n");
    }

    #[test]
    fn widths_count_characters_and_control_characters_are_blanked() {
        let mut table = Table::new(&["A", "B"]);
        table.row(vec!["ü".into(), "x\u{1b}[2Jy\nz".into()]);
        assert_eq!(table.render(), "A  B\nü  x [2Jy z\n");
    }
}
