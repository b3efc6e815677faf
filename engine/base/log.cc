#include "engine/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/log_queue.h"
#include "engine/base/utf8.h"

namespace tandem {
namespace {

// Set once by ConfigureLog. Null: events are text lines of spdlog's default logger.
std::shared_ptr<spdlog::logger>& JsonEvents() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}

struct AroundWrite {
  std::mutex mutex;  // guards call, and is held while it runs
  std::function<void(const std::function<void()>& write)> call;
};

// Shared with the queues, which may outlive the static variable.
const std::shared_ptr<AroundWrite>& SharedAroundWrite() {
  static const auto shared = std::make_shared<AroundWrite>();
  return shared;
}

// Colours on a terminal, unless NO_COLOR (no-color.org) is set.
bool HasColours(int fd) {
  const char* const refused = std::getenv("NO_COLOR");
  return isatty(fd) == 1 && (refused == nullptr || *refused == '\0');
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

// Formats the escaped message of a line.
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

using Formatter = std::unique_ptr<spdlog::pattern_formatter>;

std::string LineOf(spdlog::formatter& formatter, const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t text;
  formatter.format(message, text);
  return {text.data(), text.size()};
}

// Formats lines and pushes them to the queue. Colours the level on a terminal.
class QueueSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  QueueSink(Formatter formatter, std::shared_ptr<LogQueue> queue, bool has_colours)
      : base_sink(std::move(formatter)), queue_(std::move(queue)), has_colours_(has_colours) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line = LineOf(*formatter_, message);
    if (has_colours_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[0m");
      line.insert(message.color_range_start, ColourOf(message.level));
    }
    queue_->Push(line);
  }
  // Only an explicit flush waits, for at most a second.
  void flush_() override { queue_->Flush(std::chrono::seconds(1)); }

 private:
  static const char* ColourOf(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::trace:
        return "\033[37m";
      case spdlog::level::debug:
        return "\033[36m";
      case spdlog::level::info:
        return "\033[32m";
      case spdlog::level::warn:
        return "\033[33m\033[1m";
      default:
        return "\033[31m\033[1m";
    }
  }

  const std::shared_ptr<LogQueue> queue_;
  const bool has_colours_;
};

// Whether a value needs no quotes in `key=value`.
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

void SetLogAroundWrite(std::function<void(const std::function<void()>& write)> around) {
  const std::lock_guard lock(SharedAroundWrite()->mutex);
  SharedAroundWrite()->call = std::move(around);
}

void ConfigureLog(std::string_view level, LogFormat format) {
  const std::string name(level);
  const spdlog::level::level_enum parsed = spdlog::level::from_str(name);
  if (parsed == spdlog::level::off && name != "off") {
    throw Error(ErrorCode::kInvalidArgument,
                "log level must be trace, debug, info, warn, error or off, got '" + name + "'");
  }
  const bool is_json = format == LogFormat::kJson;
  constexpr const char* kJsonTime = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",)";
  const std::string text_pattern = is_json ? std::string(kJsonTime) + R"("message":"%V"})"
                                           : std::string("%H:%M:%S.%e %^%l%$ %V");
  const std::string event_pattern = is_json ? std::string(kJsonTime) + "%v}" : text_pattern;
  const auto formatter = [](const std::string& pattern, bool escapes_quotes) {
    auto made = std::make_unique<spdlog::pattern_formatter>();
    made->add_flag<EscapedMessage>('V', escapes_quotes).set_pattern(pattern);
    return made;
  };

  LogQueue::Options options;
  options.fd = STDERR_FILENO;
  options.report = [format, lines = std::shared_ptr<spdlog::pattern_formatter>(
                                formatter(event_pattern, false))](uint64_t n_dropped) {
    const std::string event =
        FormatEvent(format, "log_lines_dropped", {{"count", static_cast<int64_t>(n_dropped)}});
    return LineOf(*lines, {"tandem", spdlog::level::warn, event});
  };
  options.around_write = [shared = SharedAroundWrite()](const std::function<void()>& write) {
    const std::lock_guard lock(shared->mutex);
    if (shared->call) {
      shared->call(write);
    } else {
      write();
    }
  };
  const auto queue = std::make_shared<LogQueue>(std::move(options));
  const auto make = [&](const char* logger_name, Formatter lines) {
    auto logger = std::make_shared<spdlog::logger>(
        logger_name,
        std::make_shared<QueueSink>(std::move(lines), queue, HasColours(STDERR_FILENO)));
    logger->set_level(parsed);
    // spdlog's own handler writes to standard error, which may block.
    logger->set_error_handler([](const std::string&) {});
    return logger;
  };
  spdlog::set_default_logger(make("tandem", formatter(text_pattern, is_json)));
  // Events contain their JSON members, escaped already.
  JsonEvents() = is_json ? make("tandem-events", formatter(event_pattern, false)) : nullptr;
}

}  // namespace tandem
