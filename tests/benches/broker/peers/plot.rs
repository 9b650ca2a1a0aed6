//! Bar charts as SVG, with a row for each system.

use std::fmt::Write as _;

use super::summary::Figures;

const ROW: usize = 26;
/// Height of the title of a chart, and of a panel.
const TITLE: usize = 36;
const NAMES: usize = 210;
const BARS: f64 = 420.0;
const WIDTH: usize = 740;
/// Bottom margin, so that the figure of the last bar is not cut off.
const BOTTOM: usize = 14;

/// Bars of one quantity, with their own scale.
pub(super) struct Panel<'a> {
    pub(super) title: &'a str,
    pub(super) figures: &'a Figures,
    /// Number of digits after the point.
    pub(super) digits: usize,
}

/// Returns a chart of panels below each other, whose colors fit light and dark pages.
pub(super) fn chart(title: &str, panels: &[Panel<'_>]) -> String {
    let rows: usize = panels.iter().map(|panel| panel.figures.len()).sum();
    let height = TITLE * (panels.len() + 1) + rows * ROW + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>text{{font:13px system-ui,sans-serif;fill:#333}}.ours{{fill:#2b6cb0}}.other{{fill:#a0aec0}}\
         @media(prefers-color-scheme:dark){{text{{fill:#ddd}}.ours{{fill:#63b3ed}}.other{{fill:#718096}}}}</style>\n\
         <text x=\"8\" y=\"24\" font-weight=\"bold\">{title}</text>\n"
    );
    let mut top = TITLE;
    for panel in panels {
        draw(&mut svg, panel, top);
        top += TITLE + panel.figures.len() * ROW;
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, panel: &Panel<'_>, top: usize) {
    let Panel {
        title,
        figures,
        digits,
    } = panel;
    let most = figures.values().copied().fold(f64::MIN_POSITIVE, f64::max);
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "<text x=\"{NAMES}\" y=\"{}\">{title}</text>", top + 24);
    for (at, (system, figure)) in figures.iter().enumerate() {
        let y = top + TITLE + at * ROW;
        let length = (figure / most * BARS).max(1.0);
        let class = if system.is_ours() { "ours" } else { "other" };
        let (text_y, end) = (y + 14, NAMES as f64 + length + 6.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>\
             <rect class=\"{class}\" x=\"{NAMES}\" y=\"{y}\" width=\"{length:.1}\" height=\"18\"/>\
             <text x=\"{end:.1}\" y=\"{text_y}\">{figure:.digits$}</text>",
            x = NAMES - 8,
            name = system.name(),
        );
    }
}
