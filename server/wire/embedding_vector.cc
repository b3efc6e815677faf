#include "server/wire/embedding_vector.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <string_view>

#include "engine/base/check.h"

namespace tandem::server {
namespace {

void AppendBase64(std::string& out, std::string_view bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - at);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) {
      group = group << 8 | (i < n ? static_cast<uint8_t>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) {
      out.push_back(i <= n ? kDigits[group >> (18 - 6 * i) & 63] : '=');
    }
  }
}

}  // namespace

std::vector<float> UnitVector(std::span<const float> values, int64_t dimensions) {
  TANDEM_CHECK(dimensions >= 1 && dimensions <= std::ssize(values));
  const std::span<const float> kept = values.first(static_cast<size_t>(dimensions));
  double squares = 0;
  for (const float value : kept) squares += static_cast<double>(value) * static_cast<double>(value);
  const double norm = std::sqrt(squares);
  std::vector<float> unit(kept.size());
  if (norm == 0) return unit;
  for (size_t i = 0; i < kept.size(); ++i) {
    unit[i] = static_cast<float>(static_cast<double>(kept[i]) / norm);
  }
  return unit;
}

double Cosine(std::span<const float> a, std::span<const float> b) {
  TANDEM_CHECK(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return std::clamp(sum, -1.0, 1.0);
}

void AppendVector(std::string& out, std::span<const float> values, EmbeddingEncoding encoding) {
  if (encoding == EmbeddingEncoding::kBase64) {
    static_assert(std::endian::native == std::endian::little);
    out.push_back('"');
    AppendBase64(out, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    out.push_back('"');
    return;
  }
  out.push_back('[');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out.push_back(',');
    char digits[32];
    const auto [end, fault] = std::to_chars(digits, digits + sizeof(digits), values[i]);
    out.append(digits, end);
  }
  out.push_back(']');
}

}  // namespace tandem::server
