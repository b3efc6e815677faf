#include "engine/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <string>

#include "engine/base/error.h"

namespace tandem {

void ConfigureLog(std::string_view level, LogFormat format) {
  const std::string name(level);
  const spdlog::level::level_enum parsed = spdlog::level::from_str(name);
  if (parsed == spdlog::level::off && name != "off") {
    throw Error(ErrorCode::kInvalidArgument,
                "log level must be trace, debug, info, warn, error or off, got '" + name + "'");
  }
  auto logger = spdlog::stderr_color_mt("tandem");
  logger->set_level(parsed);
  if (format == LogFormat::kJson) {
    logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})");
  } else {
    logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  }
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace tandem
