use super::super::view::tests::{answers, view};
use super::super::view::{Silence, View};
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Modifier;

fn terminal(view: &View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, frame)).unwrap();
    terminal
}

/// Lines of the screen.
fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
    let terminal = terminal(view, width, height);
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width));
    let text = |line: &[_]| -> String {
        let cells = line.iter().map(ratatui::buffer::Cell::symbol);
        cells.collect::<String>().trim_end().to_owned()
    };
    lines.map(text).collect()
}

#[test]
fn an_ordinary_terminal_shows_all_parts() {
    let lines = screen(&view(&answers("model.gguf")), 80, 24);
    let shown = lines.join("\n");
    assert!(
        lines[0].starts_with("worker-orcd at here") && lines[0].ends_with("q: quit"),
        "{shown}"
    );
    assert!(lines[1].starts_with("healthy: serving since"), "{shown}");
    for words in [
        "model    model.gguf (Q4_1)",
        "KV cache  1.0 MiB of 4.0 MiB",
        "running      4",
        "deaths      3 (signalled 2, exited 1)",
        "tokens/s as watched, at most 8",
        "crash_reports  since 11:58: disk full",
        "11:59  generation 2",
    ] {
        assert!(shown.contains(words), "{words}:\n{shown}");
    }
    let side_by_side = lines
        .iter()
        .any(|it| it.contains(" worker ") && it.contains(" memory "));
    assert!(side_by_side, "{shown}");
    let bars = lines.iter().find(|it| it.contains('█')).expect("bars");
    assert!(
        bars.starts_with(" ·█"),
        "a low rate, no answer, a high one: {shown}"
    );
}

#[test]
fn a_terminal_of_any_size_shows_what_it_has_room_for() {
    let view = view(&answers("model.gguf"));
    let lines = screen(&view, 40, 10);
    assert!(lines[0].starts_with("worker-orcd at here"), "{lines:?}");
    assert!(
        lines[3].starts_with("model    model.gguf (Q4_1)"),
        "{lines:?}"
    );
    for (width, height) in [
        (1, 1),
        (1, 40),
        (3, 5),
        (200, 2),
        (75, 24),
        (76, 24),
        (300, 90),
    ] {
        screen(&view, width, height);
        screen(&View::new("here", None, None, Vec::new()), width, height);
    }
}

#[test]
fn rates_that_are_more_than_columns_are_all_there() {
    let mut view = view(&answers("m"));
    view.rates = (0..600)
        .map(|second| Some(u64::from(second == 3) * 9 + 1))
        .collect();
    let lines = screen(&view, 100, 40);
    let is_peak = |line: &String| line == "█";
    assert!(
        lines.iter().any(is_peak),
        "high in the first column alone: {lines:?}"
    );
}

#[test]
fn figures_of_a_worker_that_is_silent_are_dim() {
    let told = answers("m");
    let silence = Silence {
        since: "12:01".to_owned(),
        why: "refused".to_owned(),
    };
    let silent = View::new("here", Some(&told), Some(&silence), Vec::new());
    assert_eq!(screen(&silent, 80, 24)[1], "no answer since 12:01: refused");
    let is_dim = |view: &View| {
        let terminal = terminal(view, 80, 24);
        let buffer = terminal.backend().buffer();
        // The model's name, after its label.
        buffer[(9, 3)].modifier.contains(Modifier::DIM)
    };
    assert!(is_dim(&silent) && !is_dim(&view(&told)));
}
