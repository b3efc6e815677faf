#include "server/repl/chat_settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

enum class SettingKind { kNumber, kInteger, kSwitch, kText };

struct SettingRow {
  std::string_view name;
  SettingKind kind;
  double min;
  double max;
  std::string_view effect;
};

constexpr double kMostTokens = 1 << 30;
constexpr double kMostExact = 9007199254740992;  // 2^53: the integers that JSON readers keep

constexpr SettingRow kSettings[] = {
    {"temperature", SettingKind::kNumber, 0, 2, "0 always takes the likeliest token"},
    {"top_p", SettingKind::kNumber, 0, 1, "samples from the likeliest tokens of this probability"},
    {"top_k", SettingKind::kInteger, -1, kMostTokens, "samples from this many tokens (0: all)"},
    {"min_p", SettingKind::kNumber, 0, 1, "least probability, as a part of the likeliest token's"},
    {"seed", SettingKind::kInteger, -kMostExact, kMostExact, "the same seed gives the same answer"},
    {"max_tokens", SettingKind::kInteger, 1, kMostTokens, "most tokens of an answer"},
    {"presence_penalty", SettingKind::kNumber, -2, 2, "against tokens that occurred"},
    {"frequency_penalty", SettingKind::kNumber, -2, 2,
     "against tokens, by how often they occurred"},
    {"repetition_penalty", SettingKind::kNumber, 0.01, 10, "above 1: against repetition"},
    {"stop", SettingKind::kText, 1, 256, "ends the answer before this text"},
    {"think", SettingKind::kSwitch, 0, 1, "on or off, if the chat template has such a switch"},
};

const SettingRow& FindSetting(const std::string& name) {
  for (const SettingRow& row : kSettings) {
    if (row.name == name) return row;
  }
  const std::string nearest = NearestWord(name, ChatSettings::Names());
  std::string names;
  for (const std::string& known : ChatSettings::Names()) names += " " + known;
  throw Error(ErrorCode::kInvalidArgument,
              "there is no setting " + Quoted(name, 60) +
                  (nearest.empty() ? "; there are" + names : "; did you mean " + nearest + "?"));
}

std::string NumberText(double value) {
  return value == std::floor(value) && std::abs(value) <= kMostExact
             ? std::to_string(static_cast<int64_t>(value))
             : Json(value).dump();
}

[[noreturn]] void ThrowBadSetting(const SettingRow& row, const std::string& value) {
  std::string wanted;
  switch (row.kind) {
    case SettingKind::kNumber:
      wanted = "a number from " + NumberText(row.min) + " to " + NumberText(row.max);
      break;
    case SettingKind::kInteger:
      wanted = "an integer from " + NumberText(row.min) + " to " + NumberText(row.max);
      break;
    case SettingKind::kSwitch:
      wanted = "on or off";
      break;
    case SettingKind::kText:
      wanted = "a text of 1 to 256 bytes";
      break;
  }
  throw Error(ErrorCode::kInvalidArgument,
              std::string(row.name) + " must be " + wanted + ", got " + Quoted(value, 60));
}

std::optional<Json> ParseSetting(const SettingRow& row, const std::string& value) {
  if (row.kind == SettingKind::kText) return Json(value);
  if (row.kind == SettingKind::kSwitch) {
    if (value == "on" || value == "true") return Json(true);
    if (value == "off" || value == "false") return Json(false);
    return std::nullopt;
  }
  const char* const end = value.data() + value.size();
  if (row.kind == SettingKind::kInteger) {
    int64_t number = 0;
    const auto [next, fault] = std::from_chars(value.data(), end, number);
    return fault == std::errc() && next == end ? std::optional<Json>(number) : std::nullopt;
  }
  double number = 0;
  const auto [next, fault] = std::from_chars(value.data(), end, number);
  return fault == std::errc() && next == end ? std::optional<Json>(number) : std::nullopt;
}

bool IsInRange(const SettingRow& row, const Json& value) {
  if (row.kind == SettingKind::kSwitch) return value.is_boolean();
  if (row.kind == SettingKind::kText) {
    const size_t n_bytes = value.is_string() ? value.get_ref<const std::string&>().size() : 0;
    return n_bytes >= 1 && n_bytes <= 256;
  }
  if (row.kind == SettingKind::kInteger ? !value.is_number_integer() : !value.is_number()) {
    return false;
  }
  const auto number = value.get<double>();
  return number >= row.min && number <= row.max;
}

}  // namespace

void ChatSettings::Set(const std::string& name, const std::string& value) {
  const SettingRow& row = FindSetting(name);
  if (value == "default") {
    values_.erase(name);
    return;
  }
  const std::optional<Json> parsed = ParseSetting(row, value);
  if (!parsed || !IsInRange(row, *parsed)) ThrowBadSetting(row, value);
  values_[name] = parsed->dump(-1, ' ', false, Json::error_handler_t::replace);
}

void ChatSettings::SetJson(const std::string& name, const std::string& json) {
  const SettingRow& row = FindSetting(name);
  const Json value = Json::parse(json, nullptr, false);
  if (!IsInRange(row, value)) ThrowBadSetting(row, json);
  values_[name] = value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> ChatSettings::Names() {
  std::vector<std::string> names;
  for (const SettingRow& row : kSettings) names.emplace_back(row.name);
  return names;
}

std::string ChatSettings::Help() {
  std::string help;
  for (const SettingRow& row : kSettings) {
    help += "  " + std::string(row.name) + std::string(20 - row.name.size(), ' ');
    help += std::string(row.effect) + "\n";
  }
  return help;
}

}  // namespace tandem::server
