//! Formats of log lines, which add the ids of the current trace and span.

use std::fmt;

use leasehold_proto::text::plain;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext,
        format::{FormatEvent, FormatFields, Writer, debug_fn},
    },
    prelude::*,
    registry::LookupSpan,
};

use crate::trace;

/// Format of log lines with the ids of the current trace and span.
pub(super) struct LineFormat<F> {
    /// Format of the lines without these ids.
    pub(super) format: F,
    pub(super) is_json: bool,
}

/// Returns the format of the fields of text lines: `name=value`, with values that can neither
/// end the line nor move the cursor. A value is quoted only if it is recorded as a string rather
/// than by its `Display`.
pub(super) fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    let field = debug_fn(|writer, field, value| {
        let value = plain(&format!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{value}"),
            name if writer.has_ansi_escapes() => {
                write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}")
            }
            name => write!(writer, "{name}={value}"),
        }
    });
    field.delimited(" ")
}

impl<S, N, F> FormatEvent<S, N> for LineFormat<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some((trace, span)) = trace::current_ids() else {
            return self.format.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.format
            .format_event(context, Writer::new(&mut line), event)?;
        if self.is_json {
            let rest = line.strip_prefix('{').unwrap_or(&line);
            let ids = format_args!(r#""trace_id":"{trace}","span_id":"{span}""#);
            write!(writer, "{{{ids},{rest}")
        } else {
            let line = line.trim_end();
            writeln!(writer, "{line} trace_id={trace} span_id={span}")
        }
    }
}
