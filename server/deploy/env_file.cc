#include "server/deploy/env_file.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/base/utf8.h"
#include "engine/io/atomic_write.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxEnvBytes = 1 << 20;

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameRest(char c) { return IsNameStart(c) || (c >= '0' && c <= '9'); }

// Reads the value of one line.
class ValueReader {
 public:
  ValueReader(std::string_view line, std::string where, const EnvValues& earlier)
      : rest_(line), where_(std::move(where)), earlier_(earlier) {}

  std::string Read() {
    std::string value;
    while (!rest_.empty() && rest_.front() != ' ' && rest_.front() != '\t') {
      const char c = Take();
      if (c == '\'') {
        ReadLiteral(value);
      } else if (c == '"') {
        ReadQuoted(value);
      } else if (c == '\\') {
        if (rest_.empty()) Fail("a line may not end with a backslash");
        value.push_back(Take());
      } else if (c == '$') {
        ReadVariable(value);
      } else if (c == '`' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')') {
        Fail(std::string("put the value in quotes: it contains ") + c);
      } else {
        value.push_back(c);
      }
    }
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t')) Take();
    if (!rest_.empty() && rest_.front() != '#') Fail("put a value with spaces in quotes");
    return value;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, where_ + what);
  }
  char Take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  void ReadLiteral(std::string& value) {
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) Fail("a quote is not closed");
    value += rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
  }
  void ReadQuoted(std::string& value) {
    while (true) {
      if (rest_.empty()) Fail("a quote is not closed");
      const char c = Take();
      if (c == '"') return;
      if (c == '`') Fail("commands are not run: write the value itself");
      if (c == '$') {
        ReadVariable(value);
      } else if (c == '\\' && !rest_.empty() &&
                 std::string_view("\"\\$`").find(rest_.front()) != std::string_view::npos) {
        value.push_back(Take());
      } else {
        value.push_back(c);
      }
    }
  }
  void ReadVariable(std::string& value) {
    if (!rest_.empty() && rest_.front() == '(')
      Fail("commands are not run: write the value itself");
    const bool braces = !rest_.empty() && rest_.front() == '{';
    if (braces) Take();
    std::string name;
    while (!rest_.empty() &&
           (name.empty() ? IsNameStart(rest_.front()) : IsNameRest(rest_.front()))) {
      name.push_back(Take());
    }
    if (name.empty()) Fail("a '$' needs a name, or a backslash before it");
    if (braces && (rest_.empty() || Take() != '}')) {
      Fail("write ${" + name + "} without operators");
    }
    const auto found = earlier_.find(name);
    if (found == earlier_.end()) Fail("${" + name + "} has no value on an earlier line");
    value += found->second.text;
    if (value.size() > kMaxEnvBytes) Fail("the value is longer than 1 MiB");
  }

  std::string_view rest_;
  const std::string where_;
  const EnvValues& earlier_;
};

}  // namespace

EnvValues ParseEnvFile(std::string_view text, const std::string& file) {
  EnvValues values;
  int number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++number;
    const std::string where = file + ":" + std::to_string(number) + ": ";
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    for (const char c : line) {
      const auto byte = static_cast<unsigned char>(c);
      if ((byte < 0x20 && c != '\t') || byte == 0x7F) {
        throw Error(ErrorCode::kInvalidArgument, where + "the line has a control character");
      }
    }
    for (std::string_view rest = line; !rest.empty();) {
      const size_t bytes = WholeCharacterBytes(rest);
      if (bytes == 0) throw Error(ErrorCode::kInvalidArgument, where + "the line is not UTF-8");
      rest.remove_prefix(bytes);
    }
    const size_t start = line.find_first_not_of(" \t");
    if (start == std::string_view::npos || line[start] == '#') continue;
    line.remove_prefix(start);
    if (line.starts_with("export ")) {
      line.remove_prefix(7);
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    }
    size_t length = 0;
    while (length < line.size() &&
           (length == 0 ? IsNameStart(line[0]) : IsNameRest(line[length]))) {
      ++length;
    }
    if (length == 0 || length == line.size() || line[length] != '=') {
      throw Error(ErrorCode::kInvalidArgument, where + "write NAME=value");
    }
    const std::string name(line.substr(0, length));
    EnvValue value;
    value.line = number;
    value.text = ValueReader(line.substr(length + 1), where + name + ": ", values).Read();
    const auto [at, is_new] = values.emplace(name, std::move(value));
    if (!is_new) {
      throw Error(ErrorCode::kInvalidArgument,
                  where + name + " already has a value on line " + std::to_string(at->second.line));
    }
  }
  return values;
}

EnvValues ReadEnvFile(const std::filesystem::path& file) {
  return ParseEnvFile(engine::ReadWholeFile(file, kMaxEnvBytes), file.string());
}

}  // namespace tandem::server
