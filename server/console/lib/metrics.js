// Reads Prometheus text, as GET /metrics answers it.

// The samples by name without the namespace: Map of name to [{labels, value}].
export function parseMetrics(text) {
  const out = new Map();
  for (const line of text.split('\n')) {
    const found = /^([A-Za-z_]\w*:)?([A-Za-z_]\w*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[3] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => c === 'n' ? '\n' : c);
    }
    if (!out.has(found[2])) out.set(found[2], []);
    out.get(found[2]).push({labels, value: Number(found[4])});
  }
  return out;
}

export const sum = (metrics, name, fits = () => true) =>
  (metrics.get(name) ?? []).reduce((total, s) => total + (fits(s.labels) ? s.value : 0), 0);

// Cumulative buckets of a histogram over all models, as [[upperBound, count], …]. `before` is an earlier
// reading: only what came after it counts.
export function buckets(metrics, name, before) {
  const at = (m) => {
    const out = new Map();
    for (const s of m?.get(`${name}_bucket`) ?? []) out.set(s.labels.le, (out.get(s.labels.le) ?? 0) + s.value);
    return out;
  };
  const now = at(metrics), then = at(before);
  return [...now].map(([le, count]) => [le === '+Inf' ? Infinity : Number(le), count - (then.get(le) ?? 0)]).sort((a, b) => a[0] - b[0]);
}

// The q-quantile of a histogram, interpolated within its bucket; null without observations.
export function quantile(list, q) {
  const total = list.at(-1)?.[1] ?? 0;
  if (!total) return null;
  let low = 0, below = 0;
  for (const [bound, count] of list) {
    if (count >= q * total) return bound === Infinity ? low : low + (bound - low) * (count > below ? (q * total - below) / (count - below) : 1);
    low = bound;
    below = count;
  }
  return low;
}
