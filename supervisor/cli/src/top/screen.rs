//! Drawing of a view on a terminal of any size. Overflow is cut at the right and at the bottom.

use super::view::{Row, Section, Tone, View};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Sparkline};
use std::slice;

/// Narrower columns would cut most values.
const WIDTH_OF_TWO_COLUMNS: u16 = 76;

/// Height with title.
const HEIGHT_OF_RATES: u16 = 3;

pub(super) fn draw(view: &View, frame: &mut Frame<'_>) {
    let heights = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
    ];
    let [head, verdict, body] = Layout::vertical(heights).areas(frame.area());
    let title = format!("worker-orcd at {}", view.server.as_str());
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(8)]).areas(head);
    frame.render_widget(Line::from(title).bold(), left);
    frame.render_widget(Line::from("q: quit").dim().right_aligned(), right);
    let color = match view.tone {
        Tone::Good => Color::Green,
        Tone::Uneasy => Color::Yellow,
        Tone::Bad => Color::Red,
    };
    frame.render_widget(Line::from(view.verdict.as_str()).bold().fg(color), verdict);

    let style = if view.is_stale {
        Style::new().dim()
    } else {
        Style::new()
    };
    let [left, right] = &view.columns;
    let rest = if body.width < WIDTH_OF_TWO_COLUMNS {
        let rest = stack(left, style, body, frame);
        stack(right, style, rest, frame)
    } else {
        let [columns, rest] = split(body, height(left).max(height(right)));
        let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2);
        let [one, other] = halves.areas(columns);
        stack(left, style, one, frame);
        stack(right, style, other, frame);
        rest
    };
    let [chart, rest] = split(rest, HEIGHT_OF_RATES);
    draw_rates(&view.rates, chart, frame);
    stack(&view.lists, style, rest, frame);
}

/// The first lines of an area, and the rest.
fn split(area: Rect, height: u16) -> [Rect; 2] {
    let height = height.min(area.height);
    Layout::vertical([Constraint::Length(height), Constraint::Fill(1)]).areas(area)
}

fn height(sections: &[Section]) -> u16 {
    let heights = sections.iter().map(|section| section.rows.len() + 1);
    heights.sum::<usize>().try_into().unwrap_or(u16::MAX)
}

/// Draws sections from top to bottom. Returns the rest of the area.
fn stack(sections: &[Section], style: Style, mut area: Rect, frame: &mut Frame<'_>) -> Rect {
    for section in sections {
        let [lines, rest] = split(area, height(slice::from_ref(section)));
        let block = titled(section.title);
        let rows = block.inner(lines);
        frame.render_widget(block, lines);
        let width = section.label_width();
        for (Row { label, value }, line) in section.rows.iter().zip(rows.rows()) {
            let label = Span::from(format!("{:width$}  ", label.as_str())).dim();
            let value = Span::styled(value.as_str(), style);
            frame.render_widget(Line::from(vec![label, value]), line);
        }
        area = rest;
    }
    area
}

fn titled(title: &str) -> Block<'_> {
    let title = Line::from(format!(" {title} ")).cyan();
    Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().dim())
        .title(title)
}

/// Draws all rates at any width. A column of several rates has the highest of them.
fn draw_rates(rates: &[Option<u64>], area: Rect, frame: &mut Frame<'_>) {
    let highest = rates.iter().flatten().max();
    let title = match highest {
        Some(highest) => format!("tokens/s as watched, at most {highest}"),
        None => "tokens/s as watched".to_owned(),
    };
    let each = rates.len().div_ceil(usize::from(area.width).max(1)).max(1);
    let columns = rates
        .chunks(each)
        .map(|rates| rates.iter().copied().max().flatten());
    let chart = Sparkline::default()
        .block(titled(&title))
        .absent_value_symbol("·")
        .absent_value_style(Style::new().red())
        .data(columns)
        .green();
    frame.render_widget(chart, area);
}

#[cfg(test)]
mod tests;
