#include "config/app_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/edit_distance.h"
#include "engine/io/atomic_write.h"

namespace tandem::config {
namespace {

// An unusable value; `why` follows the key's name in messages.
struct Unusable {
  std::string why;
};

std::string Quoted(const ConfigKey& key, const std::string& text) {
  if (key.is_secret) return "";
  return ", got '" + text.substr(0, 80) + "'";
}

bool IsWholeNumber(double value) { return value == std::floor(value) && std::abs(value) < 1e15; }

std::string NumberText(double value) {
  if (IsWholeNumber(value)) return std::to_string(static_cast<int64_t>(value));
  std::string text = std::to_string(value);
  while (text.back() == '0') text.pop_back();
  return text;
}

template <class Number>
Number ParseNumber(const ConfigKey& key, const std::string& text, const char* kind) {
  Number value{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto as_double = static_cast<double>(value);
  if (fault != std::errc() || end != text.data() + text.size() || !(as_double >= key.min) ||
      !(as_double <= key.max)) {
    throw Unusable{std::string("must be ") + kind + " from " + NumberText(key.min) + " to " +
                   NumberText(key.max) + Quoted(key, text)};
  }
  return value;
}

std::vector<std::string> SplitChoices(std::string_view choices) {
  std::vector<std::string> words;
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    words.emplace_back(choices.substr(0, bar));
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return words;
}

bool IsChoice(std::string_view choices, std::string_view text) {
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, bar) == text) return true;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return false;
}

// Prometheus would reject such a name, and every scrape would fail much later.
bool IsMetricPrefix(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  if (text.empty() || !is_letter(text.front())) return false;
  for (const char c : text) {
    if (!is_letter(c) && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

// Whether the text is a host name or an address without a port, or `*` for every name.
bool IsHostPattern(std::string_view text) {
  if (text == "*") return true;
  const auto is_of = [&](std::string_view more) {
    return std::all_of(text.begin(), text.end(), [&](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             more.find(c) != std::string_view::npos;
    });
  };
  // One colon is a port; an IPv6 address has more.
  return std::count(text.begin(), text.end(), ':') >= 2 ? is_of(":[].") : is_of("-._");
}

void CheckText(const ConfigKey& key, const std::string& text) {
  if (!key.choices.empty() && !IsChoice(key.choices, text)) {
    throw Unusable{"must be one of " + std::string(key.choices) + Quoted(key, text) +
                   DidYouMean(text, SplitChoices(key.choices))};
  }
  if (key.name == "metrics-namespace" && !IsMetricPrefix(text)) {
    throw Unusable{"must be letters, digits and underscores, not starting with a digit" +
                   Quoted(key, text)};
  }
  if (key.name == "allowed-host" && !IsHostPattern(text)) {
    throw Unusable{"must be a host name or an address, without scheme and port, or *" +
                   Quoted(key, text)};
  }
  if (key.must_exist && !text.empty() && !std::filesystem::exists(text)) {
    throw Unusable{"does not exist" + Quoted(key, text)};
  }
}

class Setter {
 public:
  Setter(AppConfig& config, const ConfigKey& key, const std::vector<std::string>& words)
      : config_(config), key_(key), words_(words) {}

  void operator()(bool AppConfig::*member) const {
    const std::string& text = One();
    if (text != "true" && text != "false") {
      throw Unusable{"must be true or false" + Quoted(key_, text)};
    }
    config_.*member = text == "true";
  }
  void operator()(int64_t AppConfig::*member) const {
    config_.*member = ParseNumber<int64_t>(key_, One(), "an integer");
  }
  void operator()(Bytes AppConfig::*member) const {
    try {
      (config_.*member).n = ParseBytes(One(), "");
    } catch (const Error&) {
      throw Unusable{"must be a size such as 512M or 8G" + Quoted(key_, One())};
    }
  }
  void operator()(Seconds AppConfig::*member) const {
    (config_.*member).s = ParseNumber<double>(key_, One(), "a number of seconds");
  }
  void operator()(std::string AppConfig::*member) const {
    CheckText(key_, One());
    config_.*member = One();
  }
  void operator()(std::vector<std::string> AppConfig::*member) const {
    for (const std::string& word : words_) {
      if (word.empty()) throw Unusable{"must not be empty"};
      CheckText(key_, word);
    }
    config_.*member = words_;
  }

 private:
  const std::string& One() const {
    if (words_.size() != 1) throw Unusable{"takes one value"};
    return words_.front();
  }

  AppConfig& config_;
  const ConfigKey& key_;
  const std::vector<std::string>& words_;
};

std::string BytesText(Bytes bytes) {
  static constexpr std::string_view kUnits = "KMGT";
  int64_t n = bytes.n;
  size_t power = 0;
  while (n > 0 && n % 1024 == 0 && power < kUnits.size()) {
    n /= 1024;
    ++power;
  }
  return std::to_string(n) + (power > 0 ? std::string(1, kUnits[power - 1]) : "");
}

// Returns the value as words: one, or those of a list.
struct Reader {
  const AppConfig& config;

  std::vector<std::string> operator()(bool AppConfig::*m) const {
    return {config.*m ? "true" : "false"};
  }
  std::vector<std::string> operator()(int64_t AppConfig::*m) const {
    return {std::to_string(config.*m)};
  }
  std::vector<std::string> operator()(Bytes AppConfig::*m) const { return {BytesText(config.*m)}; }
  std::vector<std::string> operator()(Seconds AppConfig::*m) const {
    return {NumberText((config.*m).s)};
  }
  std::vector<std::string> operator()(std::string AppConfig::*m) const { return {config.*m}; }
  std::vector<std::string> operator()(std::vector<std::string> AppConfig::*m) const {
    return config.*m;
  }
};

const ConfigKey* FindKey(std::string_view name) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string NearestKey(std::string_view name) {
  const ConfigKey* nearest = &ConfigKeys().front();
  for (const ConfigKey& key : ConfigKeys()) {
    if (EditDistance(name, key.name) < EditDistance(name, nearest->name)) nearest = &key;
  }
  return std::string(nearest->name);
}

class Loader {
 public:
  LoadedConfig loaded;

  void Set(const ConfigKey& key, const std::vector<std::string>& words, const std::string& origin,
           const std::string& label) {
    try {
      std::visit(Setter(loaded.values, key, words), key.member);
      loaded.origins[key.name] = origin;
    } catch (const Unusable& unusable) {
      faults_.push_back(label + " " + unusable.why);
    }
  }

  void ReadFile(const std::string& path) {
    const std::string text = engine::ReadWholeFile(path, 1 << 20);
    YAML::Node root;
    try {
      root = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      faults_.push_back(Place(path, error.mark) + error.msg);
      return;
    }
    if (root.IsNull()) return;  // empty, or comments only
    if (!root.IsMap()) {
      faults_.push_back(path + ": must be a mapping of keys to values");
      return;
    }
    std::set<std::string> seen;
    for (const auto& entry : root) ReadEntry(path, entry.first, entry.second, seen);
  }

  LoadedConfig Finish() {
    if (faults_.empty()) return std::move(loaded);
    std::string message = "the configuration has " + std::to_string(faults_.size()) +
                          (faults_.size() == 1 ? " fault:" : " faults:");
    for (const std::string& fault : faults_) message += "\n  " + fault;
    throw Error(ErrorCode::kInvalidArgument, message);
  }

 private:
  static std::string Place(const std::string& path, const YAML::Mark& mark) {
    return path + ":" + std::to_string(mark.line + 1) + ": ";
  }

  void ReadEntry(const std::string& path, const YAML::Node& name_node, const YAML::Node& value,
                 std::set<std::string>& seen) {
    const std::string place = Place(path, name_node.Mark());
    const std::string name = name_node.IsScalar() ? name_node.Scalar() : "";
    const ConfigKey* key = FindKey(name);
    if (key == nullptr) {
      faults_.push_back(place + "unknown key '" + name.substr(0, 80) + "'; did you mean '" +
                        NearestKey(name) + "'?");
      return;
    }
    if (!seen.insert(name).second) {
      faults_.push_back(place + name + " is given twice");
      return;
    }
    if (value.IsNull()) return;  // "key:" leaves the default
    std::vector<std::string> words;
    bool is_plain = value.IsScalar();
    if (is_plain) words.push_back(value.Scalar());
    if (value.IsSequence()) {
      is_plain = std::holds_alternative<std::vector<std::string> AppConfig::*>(key->member);
      for (const YAML::Node& item : value) {
        is_plain = is_plain && item.IsScalar();
        if (is_plain) words.push_back(item.Scalar());
      }
    }
    if (!is_plain) {
      faults_.push_back(place + name + " must be a value" +
                        (value.IsSequence() ? ", not a list" : ", not a mapping"));
      return;
    }
    Set(*key, words, path + ":" + std::to_string(name_node.Mark().line + 1), place + name);
  }

  std::vector<std::string> faults_;
};

std::string YamlText(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\x" + std::string(1, "0123456789abcdef"[c >> 4]) +
             std::string(1, "0123456789abcdef"[c & 15]);
      continue;
    }
    out.push_back(c);
  }
  return out + "\"";
}

bool IsText(const ConfigKey& key) {
  return std::holds_alternative<std::string AppConfig::*>(key.member) ||
         std::holds_alternative<std::vector<std::string> AppConfig::*>(key.member);
}

}  // namespace

std::string DefaultText(const ConfigKey& key) {
  if (!key.default_text.empty()) return std::string(key.default_text);
  const std::vector<std::string> words = std::visit(Reader{AppConfig()}, key.member);
  return words.empty() ? "" : words.front();
}

LoadedConfig LoadConfig(const ConfigSources& sources) {
  Loader loader;
  if (!sources.file.empty()) loader.ReadFile(sources.file);
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.environment.empty() || !sources.environment) continue;
    const std::string variable(key.environment);
    const char* text = sources.environment(variable.c_str());
    if (text != nullptr && *text != '\0') loader.Set(key, {text}, variable, variable);
  }
  for (const auto& [name, words] : sources.flags) {
    const ConfigKey* key = FindKey(name);
    TANDEM_CHECK(key != nullptr);
    loader.Set(*key, words, "--" + name, "--" + name);
  }
  return loader.Finish();
}

std::string DescribeConfig(const LoadedConfig& config) {
  std::string out;
  for (const ConfigKey& key : ConfigKeys()) {
    std::vector<std::string> words = std::visit(Reader{config.values}, key.member);
    const auto origin = config.origins.find(key.name);
    const bool is_list = std::holds_alternative<std::vector<std::string> AppConfig::*>(key.member);
    const bool is_decided_later = origin == config.origins.end() && !key.default_text.empty();
    std::string value;
    for (std::string& word : words) {
      if (key.is_secret && !word.empty()) word = "(redacted)";
      value += (value.empty() ? "" : ", ") + (IsText(key) ? YamlText(word) : word);
    }
    if (is_list) value = "[" + value + "]";
    // An empty value leaves the default, in a file as well.
    out += std::string(key.name) + ":" + (is_decided_later ? "" : " " + value) + "  # " +
           (origin != config.origins.end() ? origin->second
            : is_decided_later             ? "default: " + std::string(key.default_text)
                                           : "default") +
           "\n";
  }
  return out;
}

std::string ConfigTable() {
  std::string out = "| key | unit | default | effect |\n|---|---|---|---|\n";
  for (const ConfigKey& key : ConfigKeys()) {
    std::string effect(key.effect);
    std::string choices;
    for (const char c : key.choices) choices += c == '|' ? "`, `" : std::string(1, c);
    if (!choices.empty()) effect += ": `" + choices + "`";
    if (!key.environment.empty()) effect += " (also `" + std::string(key.environment) + "`)";
    const bool is_value = key.default_text.empty();
    std::string text = DefaultText(key);
    if (is_value && !text.empty()) text = "`" + text + "`";
    out += "| `" + std::string(key.name) + "` | " + std::string(key.unit) + " | " + text + " | " +
           effect + " |\n";
  }
  return out;
}

int64_t ParseBytes(const std::string& text, const std::string& what) {
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.ends_with("b")) unit.resize(unit.size() - 1);
  const std::string_view units = "kmgt";
  const size_t power = unit.empty() ? 0 : units.find(unit) + 1;
  if (fault != std::errc() || number <= 0 || unit.size() > 1 || (unit.size() == 1 && power == 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                what + " must be a size such as 512M or 8G, got '" + text + "'");
  }
  for (size_t i = 0; i < power; ++i) number = CheckedMul<int64_t>(number, 1024, what.c_str());
  return number;
}

}  // namespace tandem::config
