-- Completions for wrk; see README.md. Environment: KEY, TOKENS, CLOSE.

local key = os.getenv("KEY") or ""
local tokens = tonumber(os.getenv("TOKENS") or "16")
local close = os.getenv("CLOSE") == "1"
local n = 0

function request()
  -- A seed for each request, so that no two requests do the same work.
  n = n + 1
  local body = string.format(
    '{"model":"tandem-stories","prompt":"Once upon a time","max_tokens":%d,"seed":%d,"ignore_eos":true}',
    tokens, n)
  local headers = {["Content-Type"] = "application/json", ["Authorization"] = "Bearer " .. key}
  if close then headers["Connection"] = "close" end
  return wrk.format("POST", "/v1/completions", headers, body)
end

function done(summary, latency)
  local errors = summary.errors
  local bad = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("%d requests, %.1f/s, %.1f tokens/s; p50 %.1f ms, p99 %.1f ms\n",
    summary.requests, summary.requests / summary.duration * 1e6,
    summary.requests * tokens / summary.duration * 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
  io.write(string.format("errors: connect %d, read %d, write %d, not 2xx %d, time-out %d\n",
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
  if bad > 0 or summary.requests == 0 then os.exit(1) end
end
