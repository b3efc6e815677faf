#include "training/setup/data_view.h"

#include <algorithm>
#include <cstdio>

#include "engine/base/error.h"
#include "engine/base/progress.h"

namespace tandem::training {
namespace {

constexpr int kBarWidth = 40;

template <class... Args>
void AppendFormat(std::string* text, const char* format, Args... args) {
  char line[256];
  std::snprintf(line, sizeof line, format, args...);
  *text += line;
}

// Escapes control characters, so that foreign text cannot steer the terminal.
std::string Visible(const std::string& text, bool keep_lines) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' && !keep_lines) {
      out += "\\n";
    } else if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) {
      AppendFormat(&out, "\\x%02x", byte);
    } else {
      out += c;
    }
  }
  return out;
}

int64_t Percentile(const std::vector<int32_t>& sorted, int64_t percent) {
  const auto n = static_cast<int64_t>(sorted.size());
  return sorted[static_cast<size_t>(std::min(n - 1, n * percent / 100))];
}

// Bars of doubling widths: 1, 2, 3-4, 5-8, …
std::string Histogram(const std::vector<int32_t>& lengths) {
  std::vector<int64_t> counts;
  for (const int32_t length : lengths) {
    size_t bucket = 0;
    while ((int64_t{1} << bucket) < length) ++bucket;
    if (counts.size() <= bucket) counts.resize(bucket + 1);
    ++counts[bucket];
  }
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  std::string text;
  bool begun = false;
  for (size_t b = 0; b < counts.size(); ++b) {
    begun = begun || counts[b] > 0;
    if (!begun) continue;
    const int64_t from = b == 0 ? 1 : (int64_t{1} << (b - 1)) + 1;
    AppendFormat(&text, "  %8lld - %-8lld %9lld  ", static_cast<long long>(from),
                 static_cast<long long>(int64_t{1} << b), static_cast<long long>(counts[b]));
    text += std::string(static_cast<size_t>((counts[b] * kBarWidth + most - 1) / most), '#') + "\n";
  }
  return text;
}

double Percent(int64_t part, int64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

// Rows are measured by their check; other sources by making every sample.
DataReport Measure(const TrainSpec& spec, const OpenedData& data) {
  if (!data.report.lengths.empty()) return data.report;
  DataReport report = data.report;
  report.tokens = 0;
  report.rows = data.source->size();
  for (int64_t i = 0; i < data.source->size(); ++i) {
    const Sample sample = data.source->Make(i);
    const int64_t length = LongestSequence(sample);
    report.lengths.push_back(static_cast<int32_t>(length));
    report.hashes.push_back(HashOf(sample));
    report.tokens += static_cast<int64_t>(sample.tokens.size());
    report.trained_tokens += TrainedTokens(sample);
    report.longest = std::max(report.longest, length);
    const bool is_long = length > spec.data.max_target_length + 1;
    report.over_length += is_long ? 1 : 0;
    const int64_t room = spec.data.max_target_length + 1;
    const bool is_spoiled =
        is_long &&
        ((spec.data.overflow == Overflow::kTruncate && TrainedTokens(sample, room) == 0) ||
         (spec.data.overflow == Overflow::kTruncateLeft && TrainedTokensOfEnds(sample, room) == 0));
    report.zero_loss += is_spoiled ? 1 : 0;
  }
  return report;
}

std::string MarkedSequence(const engine::Tokenizer& tokenizer, const Sample& sample, size_t k,
                           const Marks& marks) {
  std::string text;
  size_t begin = sample.SequenceBegin(k);
  while (begin < sample.SequenceEnd(k)) {
    const bool trained = sample.trained[begin] != 0;
    size_t end = begin;
    while (end < sample.SequenceEnd(k) && (sample.trained[end] != 0) == trained) ++end;
    const std::span<const TokenId> ids(sample.tokens.data() + begin, end - begin);
    const std::string part = Visible(engine::Decode(tokenizer, ids, false), true);
    text += trained ? marks.before + part + marks.behind : part;
    begin = end;
  }
  return text;
}

}  // namespace

std::string MarkedText(const engine::Tokenizer& tokenizer, const Sample& sample,
                       const Marks& marks) {
  std::string text;
  for (size_t k = 0; k < sample.n_sequences(); ++k) {
    if (sample.is_pair()) text += k == 0 ? "chosen:\n" : "\nrejected:\n";
    text += MarkedSequence(tokenizer, sample, k, marks);
  }
  return text;
}

std::string TokenTable(const engine::Tokenizer& tokenizer, const Sample& sample) {
  std::string text;
  for (size_t k = 0; k < sample.n_sequences(); ++k) {
    if (sample.is_pair()) text += k == 0 ? "chosen:\n" : "rejected:\n";
    const size_t begin = sample.SequenceBegin(k);
    for (size_t i = begin; i < sample.SequenceEnd(k); ++i) {
      const TokenId id = sample.tokens[i];
      AppendFormat(&text, "%6zu %8d %c %s  ", i - begin, id, sample.trained[i] != 0 ? '+' : ' ',
                   tokenizer.IsSpecial(id) ? "control" : "       ");
      text += Visible(engine::Decode(tokenizer, {&id, 1}, false), false) + "\n";
    }
  }
  return text;
}

std::string Statistics(const TrainSpec& spec, const OpenedData& data, const std::string& path) {
  DataReport report = Measure(spec, data);
  std::sort(report.lengths.begin(), report.lengths.end());
  std::sort(report.hashes.begin(), report.hashes.end());
  const auto distinct =
      std::unique(report.hashes.begin(), report.hashes.end()) - report.hashes.begin();
  const auto n = static_cast<int64_t>(report.lengths.size());

  std::string text = path + "\n";
  const auto line = [&](const char* what, int64_t value) {
    AppendFormat(&text, "%-28s %12lld\n", what, static_cast<long long>(value));
  };
  line("rows", report.rows);
  line("bad rows", report.bad_rows);
  line("rows split by answers", report.split_rows);
  line(IsPreference(data.format) ? "pairs" : "samples", n);
  line("duplicates", n - static_cast<int64_t>(distinct));
  line("tokens", report.tokens);
  line("trained tokens", report.trained_tokens);
  AppendFormat(&text, "%-28s %11.1f%%\n", "trained share",
               Percent(report.trained_tokens, report.tokens));
  line("tokens in a row", spec.data.max_target_length);
  line("longer than a row", report.over_length);
  line("no trained token left", report.zero_loss);
  line("median length", Percentile(report.lengths, 50));
  line("95 % are up to", Percentile(report.lengths, 95));
  line("longest", report.longest);
  return text + "lengths in tokens\n" + Histogram(report.lengths);
}

PreparedData PrepareData(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool,
                         DataSplit split, const std::filesystem::path& out) {
  if (spec.is_dpo()) {
    throw Error(ErrorCode::kInvalidArgument,
                "pairs (kind train.dpo) cannot be prepared: name their rows in data.train");
  }
  if (split == DataSplit::kTrain && !spec.data.mixture_weights.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "data.mixture_weights: a prepared file has no parts: prepare each path of data.train "
        "on its own, and mix the prepared files");
  }
  TrainSpec whole = spec;
  whole.data.overflow = Overflow::kSplit;  // the run cuts long samples itself
  TokWriter writer(out, IdentityOf(spec, files));
  OpenDataOptions options;
  options.split = split;
  options.visit = [&](const Sample& sample) { writer.Add(sample); };
  const OpenedData data = OpenData(whole, files, pool, options);
  if (data.is_prepared) {
    throw Error(ErrorCode::kInvalidArgument, "the data is already a prepared file");
  }
  PreparedData prepared;
  prepared.samples = data.source->size();
  if (data.format == RowFormat::kPlain) {
    ProgressTask task("tokenising samples", "samples", data.source->size());
    for (int64_t i = 0; i < data.source->size(); ++i) {
      const Sample sample = data.source->Make(i);
      task.Add(1);
      prepared.tokens += static_cast<int64_t>(sample.tokens.size());
      writer.Add(sample);
    }
  } else {
    prepared.tokens = data.report.tokens;
  }
  writer.Finish();
  prepared.bytes = writer.bytes();
  return prepared;
}

}  // namespace tandem::training
