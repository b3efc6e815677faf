#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

// Logging goes to standard error, one line per event, `key=value`. Use spdlog::info and friends;
// prompts and completions are never logged.
namespace tandem {

enum class LogFormat { kText, kJson };

// Called once by main. `level` is trace|debug|info|warn|error|off; throws kInvalidArgument.
void ConfigureLog(std::string_view level, LogFormat format);

}  // namespace tandem
