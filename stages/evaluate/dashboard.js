// Draws each figure of the page in the colours of the scheme that is on, and again when the scheme changes.
const source = document.getElementById("figures").textContent;

function themed() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const figures = JSON.parse(source, (_, value) => {
    const found = typeof value === "string" && value.match(/^var\((--\w+)\)$/);
    return found ? colour(found[1]) : value;
  });
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false, fixedrange: true, automargin: true, tickangle: 0 };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: innerWidth < 760 ? 11 : 13, color: colour("--soft") },
    bargap: 0.28,
    bargroupgap: 0.08,
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
    legend: { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom" },
  };
  return { figures, base, axis };
}

function draw() {
  const { figures, base, axis } = themed();
  for (const element of document.querySelectorAll("[data-figure]")) {
    const { data, layout } = figures[element.dataset.figure];
    const whole = {
      ...base,
      ...layout,
      margin: { l: 8, r: 8, t: layout.showlegend === false ? 8 : 34, b: 8 },
      xaxis: { ...axis, showgrid: false, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
      ...(layout.yaxis2 && { yaxis2: { ...axis, ...layout.yaxis2 } }),
    };
    Plotly.react(element, data, whole, { displayModeBar: false, responsive: true });
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
