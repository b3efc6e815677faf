#include "training/data/text_corpus.h"

#include "engine/base/error.h"
#include "training/data/text_bytes.h"

namespace tandem::training {
namespace {

constexpr size_t kLookedAt = 4096;
constexpr std::string_view kWhitespace = " \t\r\n\v\f";

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kWhitespace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhitespace) - first + 1);
}

}  // namespace

std::vector<std::string_view> SplitAtDelimiterLines(std::string_view text,
                                                    std::string_view delimiter) {
  std::vector<std::string_view> samples;
  const auto keep = [&](std::string_view piece) {
    piece = Trim(piece);
    if (!piece.empty()) samples.push_back(piece);
  };
  if (delimiter.empty()) {
    keep(text);
    return samples;
  }

  size_t begin = 0;
  size_t from = 0;
  while (true) {
    const size_t at = text.find(delimiter, from);
    if (at == std::string_view::npos) break;
    from = at + delimiter.size();
    // A delimiter inside a line is text; only a line of its own separates.
    const bool starts_line = at == 0 || text[at - 1] == '\n';
    const bool ends_line = from == text.size() || text[from] == '\n' || text[from] == '\r';
    if (!starts_line || !ends_line) continue;
    keep(text.substr(begin, at - begin));
    begin = from;
  }
  keep(text.substr(begin));
  return samples;
}

TextCorpus TextCorpus::Open(const std::filesystem::path& path, std::string_view delimiter) {
  TextCorpus corpus;
  const auto [file, text] = OpenTextBytes(path);
  corpus.file_ = file;
  corpus.name_ = path.string();
  if (text.substr(0, kLookedAt).find('\0') != std::string_view::npos) {
    throw Error(ErrorCode::kDataLoss,
                corpus.name_ + ": the file is binary or UTF-16; convert it to UTF-8 text");
  }
  corpus.samples_ = SplitAtDelimiterLines(text, delimiter);
  if (corpus.samples_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, corpus.name_ + ": has no text to train on");
  }
  for (size_t i = 0; i < corpus.samples_.size(); ++i) {
    const size_t size = corpus.samples_[i].size();
    if (size <= kMaxSampleBytes) continue;
    throw Error(ErrorCode::kInvalidArgument,
                corpus.name_ + ": text " + std::to_string(i + 1) + " has " + std::to_string(size) +
                    " bytes, and the limit of a sample is " + std::to_string(kMaxSampleBytes) +
                    "; put lines of data.delimiter between samples");
  }
  return corpus;
}

int64_t TextCorpus::bytes() const {
  int64_t bytes = 0;
  for (const std::string_view sample : samples_) bytes += static_cast<int64_t>(sample.size());
  return bytes;
}

}  // namespace tandem::training
