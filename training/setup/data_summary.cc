#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "training/setup/open_data.h"

namespace tandem::training {
namespace {

std::string WhatBecomesOf(Overflow overflow) {
  switch (overflow) {
    case Overflow::kTruncate:
      return "truncated to their beginnings (data.overflow)";
    case Overflow::kTruncateLeft:
      return "truncated to their ends (data.overflow)";
    case Overflow::kDrop:
      return "skipped (data.overflow)";
    case Overflow::kSplit:
      return "split (data.overflow)";
    case Overflow::kError:
      break;
  }
  return "refused (data.overflow)";
}

// A stream may split at any row end.
Overflow OverflowOf(const TrainSpec& spec) {
  return spec.data.packing == Packing::kConcatThenSplit ? Overflow::kSplit : spec.data.overflow;
}

}  // namespace

std::vector<TokenId> TurnEnds(const SampleSource& source, const engine::Tokenizer& tokenizer) {
  constexpr int64_t kLookedAt = 64;
  std::set<TokenId> ends;
  for (int64_t i = 0; i < std::min(source.size(), kLookedAt); ++i) {
    const Sample sample = source.Make(i);
    const size_t n = sample.tokens.size();
    for (size_t t = 0; t < n; ++t) {
      const bool is_last = sample.trained[t] != 0 &&
                           (t + 1 == n || t + 1 == sample.second || sample.trained[t + 1] == 0);
      if (is_last && tokenizer.IsSpecial(sample.tokens[t])) ends.insert(sample.tokens[t]);
    }
  }
  return {ends.begin(), ends.end()};
}

std::string Summary(const TrainSpec& spec, const OpenedData& data) {
  std::string text =
      std::to_string(data.source->size()) + (IsPreference(data.format) ? " pairs" : " samples");
  const DataReport& report = data.report;
  const bool is_mixture = !data.kinds.empty();
  if (is_mixture && data.format == RowFormat::kPlain) {
    return text + " of " + std::to_string(data.mixture.size()) + " paths (" + data.kinds + ")";
  }
  if (data.is_prepared) return text + " of a prepared file";
  if (data.format == RowFormat::kPlain) return text + " of plain text";
  char share[64];
  std::snprintf(share, sizeof share, ", %.1f %% of %lld tokens are trained",
                100.0 * static_cast<double>(report.trained_tokens) /
                    static_cast<double>(std::max<int64_t>(report.tokens, 1)),
                static_cast<long long>(report.tokens));
  text += " of " + std::to_string(report.rows) + " rows (" +
          (is_mixture ? data.kinds : std::string(NameOf(data.format))) + ")" + share;
  const auto add = [&](int64_t n, const std::string& what) {
    if (n > 0) text += ", " + std::to_string(n) + " " + what;
  };
  add(report.over_length, "longer than a row: " + WhatBecomesOf(OverflowOf(spec)));
  add(report.zero_loss, "skipped, with no trained token left after truncation");
  if (spec.data.on_bad_row == OnBadRow::kSkip) add(report.bad_rows, "bad rows skipped");
  if (data.is_known) text += ", unchanged since an earlier check";
  return text;
}

std::string SplitRowsNotice(const OpenedData& data) {
  const DataReport& report = data.report;
  if (report.split_rows == 0) return "";
  return std::to_string(report.split_rows) + " of " + std::to_string(report.rows) +
         (report.rows == 1 ? " row" : " rows") +
         " became one sample per answer, because the chat template rewrites earlier turns "
         "(data.turns)";
}

std::string OverLengthNotice(const TrainSpec& spec, const OpenedData& data) {
  const DataReport& report = data.report;
  const bool is_stream = spec.data.packing == Packing::kConcatThenSplit;
  if (is_stream || (report.over_length == 0 && report.zero_loss == 0)) return "";
  std::string text = std::to_string(report.over_length) + " of " + std::to_string(report.rows) +
                     (report.rows == 1 ? " row" : " rows") + " longer than " +
                     std::to_string(spec.data.max_target_length) +
                     " tokens: " + WhatBecomesOf(spec.data.overflow);
  if (report.zero_loss > 0) {
    text += "; skipped " + std::to_string(report.zero_loss) + " without a trained token";
  }
  return text;
}

}  // namespace tandem::training
