#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// Logs go to standard error, one line per event, `key=value`. Use spdlog::info and so on, or
// LogEvent for values that may contain client text. Prompts, completions and keys are never logged.
namespace tandem {

enum class LogFormat { kText, kJson };

// Called once by main. `level` is trace|debug|info|warn|error|off; throws kInvalidArgument for
// others. Every message becomes one line, and in JSON one object of valid UTF-8. Logging never
// waits for a reader of standard error (LogQueue): lines beyond 1 MiB are dropped, and
// `log_lines_dropped count=N` reports them later. At exit the process waits one second for a
// reader.
void ConfigureLog(std::string_view level, LogFormat format);

// Replaces the function that the log's thread calls around its writes. It calls its argument, which
// writes lines to standard error, and must not throw. A display on the same terminal removes its
// own line before and restores it after. Empty (the default): nothing. Returns after a running call
// of the old function.
void SetLogAroundWrite(std::function<void(const std::function<void()>& write)> around);

using LogValue = std::variant<std::string, int64_t, double>;
using LogFields = std::vector<std::pair<std::string_view, LogValue>>;

// Logs `event key=value …` as text, or one JSON member per field. Names are constants; values may
// be any bytes.
void LogEvent(spdlog::level::level_enum level, std::string_view event, const LogFields& fields);

// A line of LogEvent without time and level; for tests.
std::string FormatEvent(LogFormat format, std::string_view event, const LogFields& fields);

// Escapes everything that could end a line or a JSON string: `\n`, `\"`, `\\`, and \uXXXX for other
// control characters and line separators. Replaces invalid UTF-8 by U+FFFD.
std::string EscapeJson(std::string_view text);

}  // namespace tandem
