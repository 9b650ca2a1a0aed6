//! Bar charts as SVG, with a row for each system.

use std::fmt::Write as _;

const ROW: usize = 26;
const TOP: usize = 44;
const NAMES: usize = 210;
const BARS: f64 = 420.0;
const WIDTH: usize = 740;
/// Bottom margin, so that the figure of the last bar is not cut off.
const BOTTOM: usize = 14;

/// A bar of the chart.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) figure: f64,
    pub(super) is_ours: bool,
}

/// Returns a chart whose colors fit light and dark pages.
pub(super) fn chart(title: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.figure).fold(1.0, f64::max);
    let height = TOP + bars.len() * ROW + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>text{{font:13px system-ui,sans-serif;fill:#333}}.ours{{fill:#2b6cb0}}.other{{fill:#a0aec0}}\
         @media(prefers-color-scheme:dark){{text{{fill:#ddd}}.ours{{fill:#63b3ed}}.other{{fill:#718096}}}}</style>\n\
         <text x=\"8\" y=\"24\" font-weight=\"bold\">{title}</text>\n"
    );
    for (at, bar) in bars.iter().enumerate() {
        let y = TOP + at * ROW;
        let length = (bar.figure / most * BARS).max(1.0);
        let class = if bar.is_ours { "ours" } else { "other" };
        let (text_y, end) = (y + 14, NAMES as f64 + length + 6.0);
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>\
             <rect class=\"{class}\" x=\"{NAMES}\" y=\"{y}\" width=\"{length:.1}\" height=\"18\"/>\
             <text x=\"{end:.1}\" y=\"{text_y}\">{figure:.0}</text>",
            x = NAMES - 8,
            name = bar.name,
            figure = bar.figure,
        );
    }
    svg + "</svg>\n"
}
