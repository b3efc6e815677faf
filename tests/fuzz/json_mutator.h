#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

// libFuzzer's own mutations, which every custom mutator may call.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tandem::engine {

// Changes values of a JSON text: numbers at the borders of their types, other types, lists of other
// lengths, absent keys, values of other keys. Texts with damaged bytes rarely pass a parser.
class JsonMutator {
 public:
  explicit JsonMutator(unsigned seed) : random_(seed) {}

  void Change(nlohmann::ordered_json& root) {
    std::vector<nlohmann::ordered_json*> values;
    List(root, values);
    nlohmann::ordered_json& chosen = *values[Below(values.size())];
    const nlohmann::ordered_json other = *values[Below(values.size())];
    switch (Below(6)) {
      case 0:
        return ChangeSize(chosen, other);
      case 1:
        chosen = other;
        return;
      case 2:
        if (chosen.is_number()) return Nudge(chosen);
        [[fallthrough]];
      default:
        chosen = Border();
    }
  }

 private:
  size_t Below(size_t count) { return random_() % count; }

  static void List(nlohmann::ordered_json& value, std::vector<nlohmann::ordered_json*>& out) {
    out.push_back(&value);
    if (!value.is_structured()) return;
    for (nlohmann::ordered_json& inner : value) List(inner, out);
  }

  // Adds or removes an item or a key.
  void ChangeSize(nlohmann::ordered_json& value, const nlohmann::ordered_json& other) {
    if (value.is_array()) {
      if (!value.empty() && Below(2) == 0) {
        value.erase(Below(value.size()));
      } else {
        value.push_back(other);
      }
    } else if (value.is_object() && !value.empty()) {
      const auto at = std::next(value.begin(), static_cast<std::ptrdiff_t>(Below(value.size())));
      if (Below(4) != 0) {
        value.erase(at);
      } else {
        at.value() = other;
      }
    }
  }

  void Nudge(nlohmann::ordered_json& number) {
    if (number.is_number_float()) {
      number = number.get<double>() * (Below(2) == 0 ? 0.5 : 3);
      return;
    }
    const auto value = static_cast<uint64_t>(number.get<int64_t>());
    const uint64_t changed[] = {value + 1, value - 1, value * 2, value / 2, value * 1000};
    number = static_cast<int64_t>(changed[Below(5)]);
  }

  nlohmann::ordered_json Border() {
    const nlohmann::ordered_json borders[] = {0,
                                              1,
                                              2,
                                              3,
                                              7,
                                              16,
                                              32,
                                              -1,
                                              1 << 14,
                                              1 << 18,
                                              1 << 22,
                                              1000,
                                              -1000,
                                              1LL << 31,
                                              1LL << 32,
                                              1LL << 40,
                                              1LL << 62,
                                              INT64_MAX,
                                              INT64_MIN,
                                              UINT64_MAX,
                                              0.0,
                                              0.25,
                                              0.5,
                                              1.5,
                                              -1.5,
                                              1e-30,
                                              1e30,
                                              1e308,
                                              1e-7,
                                              true,
                                              false,
                                              nullptr,
                                              "",
                                              "x",
                                              "full_attention",
                                              "sliding_attention",
                                              "linear_attention",
                                              "mamba",
                                              "default",
                                              "linear",
                                              "yarn",
                                              "llama3",
                                              "longrope",
                                              "silu",
                                              "sigmoid",
                                              "softmax",
                                              nlohmann::ordered_json::array(),
                                              nlohmann::ordered_json::object(),
                                              nlohmann::ordered_json::array({0, 1})};
    return borders[Below(std::size(borders))];
  }

  std::mt19937 random_;
};

// The body of a custom mutator. The JSON text ends at the first zero byte of `data` or at its end.
// libFuzzer makes every eighth change, and those of other texts. Returns the new size.
inline size_t MutateJsonText(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), size);
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(all.substr(0, end), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  JsonMutator mutator(seed);
  for (unsigned i = 0; i <= seed / 8 % 3; ++i) mutator.Change(json);
  const std::string rest(all.substr(end));
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + rest;
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace tandem::engine
