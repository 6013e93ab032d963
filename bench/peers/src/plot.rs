//! Plots: lines over two logarithmic axes, as SVG that reads the same on a light and on a dark page.

use std::fmt::Write as _;

/// One line.
pub(crate) struct Series {
    pub(crate) name: String,
    /// Both above zero, from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a plot shows.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) series: Vec<Series>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
/// Where the lines are: beside the labels of the axes, and left of the names.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 690.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 404.0;
/// Names at the ends of lines stay this far apart.
const NAME_HEIGHT: f64 = 17.0;

/// Colours that people with any kind of colour vision can tell apart, and marks for those who see none.
const COLOURS: [&str; 7] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#806000", "#56b4e9", "#000000"];
const MARKS: [&str; 7] = ["circle", "square", "diamond", "up", "down", "circle", "square"];

impl Plot {
    /// The plot as a file of its own, on white.
    pub(crate) fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|it| it.points.iter().copied());
        let x = Axis::over(points().map(|it| it.0), LEFT, RIGHT);
        let y = Axis::over(points().map(|it| it.1), BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"28\" font-size=\"16\" font-weight=\"600\">{title}</text>\n",
            title = escaped(self.title)
        );
        self.grid(&mut svg, &x, &y);
        for (nth, series) in self.series.iter().enumerate() {
            line(&mut svg, nth, series, &x, &y);
        }
        self.names(&mut svg, &y);
        svg.push_str("</svg>\n");
        svg
    }

    fn grid(&self, svg: &mut String, x: &Axis, y: &Axis) {
        for (value, at) in x.ticks() {
            put(svg, &format!("<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#e4e4e4\"/>"));
            let below = BOTTOM + 20.0;
            put(
                svg,
                &format!("<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", short(value)),
            );
        }
        for (value, at) in y.ticks() {
            put(svg, &format!("<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#e4e4e4\"/>"));
            let (beside, down) = (LEFT - 8.0, at + 4.5);
            put(
                svg,
                &format!("<text x=\"{beside}\" y=\"{down:.1}\" text-anchor=\"end\">{}</text>", short(value)),
            );
        }
        put(svg, &format!("<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#555\"/>"));
        let middle = f64::midpoint(LEFT, RIGHT);
        let below = BOTTOM + 42.0;
        put(
            svg,
            &format!("<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", escaped(self.x)),
        );
        let middle = f64::midpoint(TOP, BOTTOM);
        put(
            svg,
            &format!(
                "<text transform=\"translate(22 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
                escaped(self.y)
            ),
        );
    }

    /// Each name beside the end of its line, moved down where two would meet.
    fn names(&self, svg: &mut String, y: &Axis) {
        let ends =
            self.series.iter().enumerate().filter_map(|(nth, it)| Some((nth, y.at(it.points.last()?.1))));
        let mut ends: Vec<(usize, f64)> = ends.collect();
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut free_from = f64::MIN;
        let lowest = BOTTOM - NAME_HEIGHT * ends.len().saturating_sub(1) as f64;
        for (rank, (nth, at)) in ends.into_iter().enumerate() {
            let at = at.min(lowest + NAME_HEIGHT * rank as f64).max(free_from);
            free_from = at + NAME_HEIGHT;
            let (mark, text) = (RIGHT + 22.0, RIGHT + 34.0);
            put(svg, &marked(nth, mark, at));
            let down = at + 4.5;
            let name = escaped(&self.series[nth].name);
            put(svg, &format!("<text x=\"{text}\" y=\"{down:.1}\">{name}</text>"));
        }
    }
}

/// A logarithmic axis between two places of the picture.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let exponents: Vec<f64> = values.map(f64::log10).collect();
        let low = exponents.iter().copied().fold(f64::INFINITY, f64::min);
        let high = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low.is_finite() { (low.floor(), high.ceil()) } else { (0.0, 1.0) };
        Axis { low, high: high.max(low + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// The powers of ten, and what is between them where there are few.
    fn ticks(&self) -> Vec<(f64, f64)> {
        let steps: &[f64] = if self.high - self.low > 2.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let exponents = self.low as i32..=self.high as i32;
        let values = exponents.flat_map(|it| steps.iter().map(move |step| step * 10_f64.powi(it)));
        let values = values.filter(|value| value.log10() < self.high + 1e-9);
        values.map(|value| (value, self.at(value))).collect()
    }
}

fn line(svg: &mut String, nth: usize, series: &Series, x: &Axis, y: &Axis) {
    let places: Vec<(f64, f64)> = series.points.iter().map(|it| (x.at(it.0), y.at(it.1))).collect();
    let path: Vec<String> = places.iter().map(|it| format!("{:.1} {:.1}", it.0, it.1)).collect();
    // The first is what the others are compared with.
    let width = if nth == 0 { 3.0 } else { 1.8 };
    let colour = COLOURS[nth % COLOURS.len()];
    put(
        svg,
        &format!(
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            path.join("L")
        ),
    );
    for (x, y) in places {
        put(svg, &marked(nth, x, y));
    }
}

fn marked(nth: usize, x: f64, y: f64) -> String {
    let colour = COLOURS[nth % COLOURS.len()];
    let shape = match MARKS[nth % MARKS.len()] {
        "square" => "M-4 -4H4V4H-4Z",
        "diamond" => "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
        "up" => "M0 -5.5L5 4H-5Z",
        "down" => "M0 5.5L5 -4H-5Z",
        _ => "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0 -4.5 0Z",
    };
    format!("<path transform=\"translate({x:.1} {y:.1})\" d=\"{shape}\" fill=\"{colour}\"/>")
}

/// A power of ten as people write it.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.0} G", value / 1e9),
        value if value >= 1e6 => format!("{:.0} M", value / 1e6),
        value if value >= 1e3 => format!("{:.0} k", value / 1e3),
        value if value >= 1.0 => format!("{value:.0}"),
        value => format!("{value}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn put(svg: &mut String, element: &str) {
    writeln!(svg, "{element}").expect("writing into memory does not fail");
}
