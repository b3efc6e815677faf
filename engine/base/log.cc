#include "engine/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "engine/base/utf8.h"

namespace tandem {
namespace {

// Set once by ConfigureLog. Null: events are text lines of spdlog's own default logger.
std::shared_ptr<spdlog::logger>& JsonEvents() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}

void AppendCode(std::string& out, unsigned code) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "\\u%04x", code & 0xffff);
  out += text.data();
}

void AppendEscaped(std::string& out, std::string_view text, bool escapes_quotes) {
  while (!text.empty()) {
    const size_t n = WholeCharacterBytes(text);
    const char c = text.front();
    if (n == 0) {
      out += "\xef\xbf\xbd";
    } else if (n == 2 && text[0] == '\xc2' && static_cast<unsigned char>(text[1]) < 0xa0) {
      AppendCode(out, static_cast<unsigned char>(text[1]));
    } else if (text.starts_with("\xe2\x80\xa8") || text.starts_with("\xe2\x80\xa9")) {
      AppendCode(out, text[2] == '\xa8' ? 0x2028 : 0x2029);
    } else if (n > 1) {
      out.append(text.substr(0, n));
    } else if (escapes_quotes && (c == '"' || c == '\\')) {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      AppendCode(out, static_cast<unsigned char>(c));
    } else {
      out.push_back(c);
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
}

// The message of a line, escaped.
class EscapedMessage : public spdlog::custom_flag_formatter {
 public:
  explicit EscapedMessage(bool escapes_quotes) : escapes_quotes_(escapes_quotes) {}
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    std::string text;
    AppendEscaped(text, {message.payload.data(), message.payload.size()}, escapes_quotes_);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>(escapes_quotes_);
  }

 private:
  const bool escapes_quotes_;
};

// A word that needs no quotes in `key=value`.
bool IsPlainWord(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || std::string_view("._-:/+{}").find(c) < 8;
    if (!is_plain) return false;
  }
  return true;
}

std::string NumberText(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", value);
  return text.data();
}

}  // namespace

std::string EscapeJson(std::string_view text) {
  std::string out;
  AppendEscaped(out, text, true);
  return out;
}

std::string FormatEvent(LogFormat format, std::string_view event, const LogFields& fields) {
  const bool is_json = format == LogFormat::kJson;
  std::string out = is_json ? "\"event\":\"" + EscapeJson(event) + "\"" : std::string(event);
  for (const auto& [name, value] : fields) {
    out += is_json ? ",\"" : " ";
    out += name;
    out += is_json ? "\":" : "=";
    if (const auto* text = std::get_if<std::string>(&value)) {
      const bool quotes = is_json || !IsPlainWord(*text);
      out += quotes ? "\"" + EscapeJson(*text) + "\"" : *text;
    } else if (const auto* number = std::get_if<int64_t>(&value)) {
      out += std::to_string(*number);
    } else {
      out += NumberText(std::get<double>(value));
    }
  }
  return out;
}

void LogEvent(spdlog::level::level_enum level, std::string_view event, const LogFields& fields) {
  if (!spdlog::default_logger_raw()->should_log(level)) return;
  if (JsonEvents()) {
    JsonEvents()->log(level, FormatEvent(LogFormat::kJson, event, fields));
  } else {
    spdlog::log(level, FormatEvent(LogFormat::kText, event, fields));
  }
}

void ConfigureLog(std::string_view level, LogFormat format) {
  const std::string name(level);
  const spdlog::level::level_enum parsed = spdlog::level::from_str(name);
  if (parsed == spdlog::level::off && name != "off") {
    throw Error(ErrorCode::kInvalidArgument,
                "log level must be trace, debug, info, warn, error or off, got '" + name + "'");
  }
  const auto make = [&](const char* logger_name, bool escapes_quotes, const char* pattern) {
    auto logger = spdlog::stderr_color_mt(logger_name);
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<EscapedMessage>('V', escapes_quotes).set_pattern(pattern);
    logger->set_formatter(std::move(formatter));
    logger->set_level(parsed);
    return logger;
  };
  constexpr const char* kJsonTime = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",)";
  if (format == LogFormat::kJson) {
    spdlog::set_default_logger(
        make("tandem", true, (std::string(kJsonTime) + R"("message":"%V"})").c_str()));
    // Events bring their members with them, escaped already.
    JsonEvents() = make("tandem-events", false, (std::string(kJsonTime) + "%v}").c_str());
  } else {
    spdlog::set_default_logger(make("tandem", false, "%H:%M:%S.%e %^%l%$ %V"));
  }
}

}  // namespace tandem
