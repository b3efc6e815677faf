#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// Logging goes to standard error, one line per event, `key=value`. Use spdlog::info and friends, or
// LogEvent where a value may hold what a client wrote; prompts, completions and keys are never
// logged.
namespace tandem {

enum class LogFormat { kText, kJson };

// Called once by main. `level` is trace|debug|info|warn|error|off; throws kInvalidArgument.
// Whatever a message holds, it stays one line, and in JSON one object of valid UTF-8. Logging never
// waits for a reader of standard error (LogQueue): lines beyond 1 MiB are dropped, and a line
// `log_lines_dropped count=N` says so later. The end of the process waits one second for a reader.
void ConfigureLog(std::string_view level, LogFormat format);

using LogValue = std::variant<std::string, int64_t, double>;
using LogFields = std::vector<std::pair<std::string_view, LogValue>>;

// `event key=value …` as text, one member per field as JSON. Names are ours; values may be any
// bytes.
void LogEvent(spdlog::level::level_enum level, std::string_view event, const LogFields& fields);

// How LogEvent writes a line, less time and level; for tests.
std::string FormatEvent(LogFormat format, std::string_view event, const LogFields& fields);

// The text with everything escaped that could end a line or a JSON string: `\n`, `\"`, `\\`, and
// \uXXXX for other control characters and line separators. Bytes that are not UTF-8 become U+FFFD.
std::string EscapeJson(std::string_view text);

}  // namespace tandem
