#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "training/spec/spec.h"

// How the value of one key is parsed, shown and described. Internal to the key table (spec_keys)
// and the reader (spec).
namespace tandem::training {

// The value given for one key: a scalar, or a list of scalars.
struct GivenValue {
  std::vector<std::string> words;
  bool is_list = false;
};

// A value that does not suit its key. The reader catches and collects them.
class BadValue : public Error {
 public:
  explicit BadValue(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

struct SpecValue {
  std::function<void(TrainSpec&, const GivenValue&)> set;
  std::function<std::string(const TrainSpec&)> show;  // in the spelling that `set` reads; may be
                                                      // null
  std::string allowed;                                // allowed values, for readers
  bool is_path = false;
};

const std::string& ScalarText(const GivenValue& given);
double ParseNumber(const std::string& word);
int64_t ParseInteger(const std::string& word);  // accepts 1e4
bool ParseBool(const std::string& word);
void CheckRange(double value, double min, double max);
std::string ShowNumber(double value);  // the shortest text that reads back the same
std::string ShowRange(const char* what, double min, double max);
std::string ShowList(const std::vector<std::string>& words);

// The makers below take a field: a lambda that returns a reference into the spec, const or not.
// Example: FIELD(train.steps), a macro of the key table.

template <class Field>
SpecValue Integer(Field field, double min, double max) {
  return {[=](TrainSpec& spec, const GivenValue& given) {
            const int64_t value = ParseInteger(ScalarText(given));
            CheckRange(static_cast<double>(value), min, max);
            using Target = std::remove_reference_t<decltype(field(spec))>;
            field(spec) = static_cast<Target>(value);
          },
          [=](const TrainSpec& spec) { return std::to_string(field(spec)); },
          ShowRange("a whole number", min, max)};
}

// Accepts MaxText's -1 for our 0 ("choose for me" or "never").
template <class Field>
SpecValue IntegerOrMinusOne(Field field, double max) {
  SpecValue value = Integer(field, 0, max);
  value.set = [=](TrainSpec& spec, const GivenValue& given) {
    const int64_t number = ParseInteger(ScalarText(given));
    CheckRange(static_cast<double>(number), -1, max);
    field(spec) = std::max<int64_t>(number, 0);
  };
  value.allowed += "; -1 means 0";
  return value;
}

template <class Field>
SpecValue Number(Field field, double min, double max) {
  return {[=](TrainSpec& spec, const GivenValue& given) {
            const double value = ParseNumber(ScalarText(given));
            CheckRange(value, min, max);
            field(spec) = value;
          },
          [=](const TrainSpec& spec) { return ShowNumber(field(spec)); },
          ShowRange("a number", min, max)};
}

// A number in [0, 1), also after rounding to f32: the code divides by its distance to 1.
template <class Field>
SpecValue BelowOne(Field field) {
  return {[=](TrainSpec& spec, const GivenValue& given) {
            const double value = ParseNumber(ScalarText(given));
            if (value < 0 || static_cast<float>(value) >= 1) {
              throw BadValue("must be at least 0 and below 1, got " + ScalarText(given));
            }
            field(spec) = value;
          },
          [=](const TrainSpec& spec) { return ShowNumber(field(spec)); },
          "a number from 0 to 1, without 1 itself"};
}

template <class Field>
SpecValue Bool(Field field) {
  return {
      [=](TrainSpec& spec, const GivenValue& given) { field(spec) = ParseBool(ScalarText(given)); },
      [=](const TrainSpec& spec) { return std::string(field(spec) ? "true" : "false"); },
      "true or false"};
}

template <class Field>
SpecValue Text(Field field) {
  return {[=](TrainSpec& spec, const GivenValue& given) { field(spec) = ScalarText(given); },
          [=](const TrainSpec& spec) { return std::string(field(spec)); }, "text"};
}

template <class Field>
SpecValue Path(Field field) {
  SpecValue value = Text(field);
  value.allowed = "a path";
  value.is_path = true;
  return value;
}

// A path, or a list of paths, stored as one text joined by ';'.
template <class Field>
SpecValue Paths(Field field) {
  SpecValue value = Path(field);
  value.set = [=](TrainSpec& spec, const GivenValue& given) {
    field(spec) = JoinPaths(given.words);
  };
  value.allowed = "a path, or a list of them";
  return value;
}

template <class Field>
SpecValue List(Field field) {
  return {[=](TrainSpec& spec, const GivenValue& given) { field(spec) = given.words; },
          [=](const TrainSpec& spec) { return ShowList(field(spec)); },
          "a text, or a list of them"};
}

// Column names: a list, or MaxText's list in a text: "['prompt', 'completion']".
std::vector<std::string> ParseNames(const GivenValue& given);

template <class Field>
SpecValue Names(Field field) {
  SpecValue value = List(field);
  value.set = [=](TrainSpec& spec, const GivenValue& given) { field(spec) = ParseNames(given); };
  value.allowed = "a name, or a list of them";
  return value;
}

// `choices` are pairs of spelling and value. The first spelling of a value is the one shown.
template <class Enum, class Field>
SpecValue Choice(Field field, std::vector<std::pair<std::string, Enum>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (!name.empty()) names.append(names.empty() ? "" : ", ").append(name);
  }
  return {[=](TrainSpec& spec, const GivenValue& given) {
            const std::string& word = ScalarText(given);
            for (const auto& [name, value] : choices) {
              if (name != word) continue;
              field(spec) = value;
              return;
            }
            std::vector<std::string> known;
            for (const auto& [name, value] : choices) known.push_back(name);
            throw BadValue("must be one of " + names + ", got \"" + word + "\"" +
                           DidYouMean(word, known));
          },
          [=](const TrainSpec& spec) {
            for (const auto& [name, value] : choices) {
              if (value == field(spec)) return name;
            }
            return std::string("?");
          },
          "one of " + names};
}

}  // namespace tandem::training
