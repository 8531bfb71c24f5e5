//! Pictures: panels one above another with curves over the same time.
//!
//! A chart library would be larger than all that is needed here: a few polylines, axes and labels
//! with a fixed number of digits, so that a picture is the same bytes each time.

use std::fmt::Write;

const WIDTH: f64 = 960.0;
const PANEL: f64 = 200.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const GAP: f64 = 60.0;
const GREY: &str = "#d0d0d0";
const INK: &str = "#333333";
/// The colours of curves, in their order.
const COLOURS: [&str; 4] = ["#c0392b", "#2471a3", "#239b56", "#b9770e"];

/// The scale by which values are placed between bottom and top.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AxisScale {
    Even,
    /// Each decade is as high as the next one. What is below the lowest value, which is a power of
    /// ten, is drawn at the bottom.
    Decades(f64),
}

/// Curves over one time.
pub(crate) struct Panel {
    title: String,
    scale: AxisScale,
    curves: Vec<(String, Vec<(f64, f64)>)>,
}

impl Panel {
    pub fn new(title: &str, scale: AxisScale) -> Panel {
        Panel { title: title.to_string(), scale, curves: Vec::new() }
    }

    /// Adds a curve through (second, value).
    pub fn curve(mut self, name: &str, points: Vec<(f64, f64)>) -> Panel {
        self.curves.push((name.to_string(), points));
        self
    }

    /// Adds a curve with a value for each second.
    pub fn seconds(self, name: &str, values: &[f64]) -> Panel {
        let points = values.iter().enumerate().map(|(s, value)| (s as f64 + 0.5, *value));
        self.curve(name, points.collect())
    }

    fn highest(&self) -> f64 {
        self.curves.iter().flat_map(|c| &c.1).fold(0.0, |most, (_, value)| value.max(most))
    }

    fn end(&self) -> f64 {
        self.curves.iter().flat_map(|c| &c.1).fold(0.0, |most, (second, _)| second.max(most))
    }
}

/// The picture of some panels.
pub(crate) fn picture(title: &str, panels: &[Panel]) -> String {
    let height = TOP + panels.len() as f64 * (PANEL + GAP) + 10.0;
    let end = panels.iter().map(Panel::end).fold(1.0, f64::max).ceil();
    let mut out = Svg(String::new());
    out.add(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>"
    ));
    out.label(Point { x: LEFT, y: 22.0 }, "start", INK, title);
    for (i, panel) in panels.iter().enumerate() {
        out.panel(TOP + i as f64 * (PANEL + GAP), panel, end);
    }
    out.0.push_str("</svg>\n");
    out.0
}

/// A place in a picture.
struct Point {
    x: f64,
    y: f64,
}

struct Svg(String);

impl Svg {
    fn add(&mut self, line: std::fmt::Arguments<'_>) {
        // A String takes everything.
        _ = writeln!(self.0, "{line}");
    }

    fn label(&mut self, at: Point, anchor: &str, colour: &str, text: &str) {
        let Point { x, y } = at;
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}\
             </text>"
        ));
    }

    fn panel(&mut self, top: f64, panel: &Panel, end: f64) {
        self.label(Point { x: LEFT, y: top - 8.0 }, "start", INK, &panel.title);
        let mut right = WIDTH - RIGHT;
        for (i, (name, _)) in panel.curves.iter().enumerate().rev() {
            let at = Point { x: right, y: top - 8.0 };
            self.label(at, "end", COLOURS[i % COLOURS.len()], name);
            right -= 7.0 * name.len() as f64 + 20.0;
        }
        let (lines, place) = axis(panel.scale, panel.highest());
        let y = |value: f64| top + PANEL * (1.0 - place(value));
        for value in lines {
            let at = y(value);
            self.add(format_args!(
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{GREY}\"/>",
                WIDTH - RIGHT
            ));
            self.label(Point { x: LEFT - 6.0, y: at + 4.0 }, "end", INK, &tick(value));
        }
        let across = WIDTH - LEFT - RIGHT;
        let step = round_step(end / 8.0);
        for i in 0..=(end / step) as u32 {
            let second = f64::from(i) * step;
            let at = Point { x: LEFT + across * second / end, y: top + PANEL + 16.0 };
            self.label(at, "middle", INK, &format!("{} s", tick(second)));
        }
        for (i, (_, points)) in panel.curves.iter().enumerate() {
            let mut line = String::new();
            for (second, value) in points {
                _ = write!(line, "{:.1},{:.1} ", LEFT + across * second / end, y(*value));
            }
            self.add(format_args!(
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.4\" points=\"{}\"/>",
                COLOURS[i % COLOURS.len()],
                line.trim_end()
            ));
        }
    }
}

/// The values that get a line, and the place of each value between bottom (0) and top (1).
fn axis(scale: AxisScale, highest: f64) -> (Vec<f64>, Box<dyn Fn(f64) -> f64>) {
    match scale {
        AxisScale::Even => {
            let step = round_step(highest / 4.0);
            let count = (highest / step).ceil().max(1.0);
            let lines = (0..=count as u32).map(|i| f64::from(i) * step).collect();
            (lines, Box::new(move |value| value / (step * count)))
        }
        AxisScale::Decades(lowest) => {
            let decades = (highest.max(lowest) / lowest).log10().ceil().max(1.0);
            let lines = (0..=decades as i32).map(|i| lowest * 10f64.powi(i)).collect();
            let place = move |value: f64| (value.max(lowest) / lowest).log10() / decades;
            (lines, Box::new(place))
        }
    }
}

/// The next of 1, 2, 5, 10, 20 and so on, also below 1.
fn round_step(about: f64) -> f64 {
    if about <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powi(about.log10().floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= about).unwrap_or(10.0 * power)
}

fn tick(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_curve_for_each_name() {
        let panel = Panel::new("rate & more", AxisScale::Decades(1.0))
            .seconds("old", &[1.0, 10.0, 1000.0])
            .seconds("ours", &[0.0, 2.0, 2.0]);
        let svg = picture("title", &[panel]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("rate &amp; more") && svg.contains(">1000<"));
        // 1000 is at the top, and what is below 1 at the bottom.
        assert!(svg.contains(&format!(",{TOP:.1}\"")));
        assert!(svg.contains(&format!(",{:.1} ", TOP + PANEL)));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([0.0, 0.3, 1.0, 3.0, 70.0].map(round_step), [1.0, 0.5, 1.0, 5.0, 100.0]);
        assert_eq!([0.0, 0.001, 0.5, 20.0, 1000.0].map(tick), ["0", "0.001", "0.5", "20", "1000"]);
    }
}
