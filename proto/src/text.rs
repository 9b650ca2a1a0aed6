//! Escaping of untrusted text for display.

/// Returns the text with every hidden character replaced by its code point, as in `‹U+202E›`.
///
/// The result is one line that cannot move the cursor of a terminal, change the order of the text
/// around it, or look like another text.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            shown += &format!("‹U+{:04X}›", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns true if a character is invisible: control characters (C0, DEL, C1), line and paragraph
/// separators, bidirectional controls, and characters of zero width.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}'
            | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}'
            | '\u{FFA0}' | '\u{FFF9}'..='\u{FFFB}' | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_text_of_any_script_stays() {
        for text in ["invoices/4711", "naïve/订单/שלום", "a b", "‹U+202E›", ""] {
            assert_eq!(plain(text), text);
        }
    }

    #[test]
    fn hidden_characters_are_written_out() {
        for (text, shown) in [
            ("a\u{202E}fdp.exe", "a‹U+202E›fdp.exe"),
            ("a\u{200B}b\nc", "a‹U+200B›b‹U+000A›c"),
            ("\u{1B}[2J\u{7}\u{7F}", "‹U+001B›[2J‹U+0007›‹U+007F›"),
            ("\u{9B}31m\u{85}", "‹U+009B›31m‹U+0085›"),
            ("a\u{2028}b\u{2029}", "a‹U+2028›b‹U+2029›"),
            ("\u{2066}\u{FEFF}\u{E0041}", "‹U+2066›‹U+FEFF›‹U+E0041›"),
        ] {
            assert_eq!(plain(text), shown);
            assert!(!plain(text).chars().any(is_hidden));
        }
    }
}
