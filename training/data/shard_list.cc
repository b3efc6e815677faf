#include "training/data/shard_list.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "training/data/text_bytes.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kPatternMarks = "*?";
constexpr char kListMark = ';';
// Files of a data set that hold no rows.
constexpr std::string_view kNoRows[] = {"dataset_infos.json", "dataset_dict.json"};

std::string ExtensionOf(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

// Matches a shell pattern of * and ? only. Takes at most the product of the lengths.
bool Matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last star, and the begin of its match
  size_t taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

// "train_sft-00001-of-00003-a1b2" is shard 1 of 3 of train_sft.
struct ShardName {
  std::string split;
  std::optional<std::pair<uint64_t, uint64_t>> number;  // which, of how many
};

ShardName ParseShardName(const std::string& stem) {
  // A name of digits only (0000.parquet) is an unnamed split.
  if (stem.find_first_not_of(kDigits) == std::string::npos) return {"", std::nullopt};
  const size_t of = stem.rfind("-of-");
  if (of == std::string::npos || of == 0) return {stem, std::nullopt};
  const size_t dash = stem.find_last_not_of(kDigits, of - 1);
  const std::string count = stem.substr(of + 4, stem.find_first_not_of(kDigits, of + 4) - (of + 4));
  if (dash == std::string::npos || stem[dash] != '-') return {stem, std::nullopt};
  const std::string which = stem.substr(dash + 1, of - dash - 1);
  if (which.empty() || which.size() > 9 || count.empty() || count.size() > 9) {
    return {stem, std::nullopt};
  }
  return {stem.substr(0, dash), std::pair(std::stoull(which), std::stoull(count))};
}

constexpr std::string_view kArrayRecordNames[] = {".array_record", ".arrayrecord"};

// Where the extension of an ArrayRecord file begins and ends in its name; nullopt: another file.
std::optional<std::pair<size_t, size_t>> ArrayRecordMark(const std::string& name) {
  for (const std::string_view mark : kArrayRecordNames) {
    const size_t begin = name.rfind(mark);
    if (begin == std::string::npos) continue;
    const size_t end = begin + mark.size();
    const std::string behind = name.substr(end);
    if (behind.empty() || ParseShardName("x" + behind).number) return std::pair(begin, end);
  }
  return std::nullopt;
}

ShardName ShardOf(const fs::path& file) {
  std::string name = file.filename().string();
  const auto mark = ArrayRecordMark(name);
  if (!mark) return ParseShardName(WithoutCompression(file).stem().string());
  return ParseShardName(name.erase(mark->first, mark->second - mark->first));
}

std::vector<fs::path> Entries(const fs::path& folder) {
  std::error_code failed;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(folder, failed); !failed && at != fs::directory_iterator();
       at.increment(failed)) {
    entries.push_back(at->path());
  }
  if (failed) throw Error(ErrorCode::kIo, folder.string() + ": " + failed.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool IsRowFile(const fs::path& path) {
  const std::string extension = ExtensionOf(WithoutCompression(path));
  const bool is_known = extension == ".parquet" || extension == ".csv" || extension == ".jsonl" ||
                        extension == ".ndjson" || extension == ".json" || IsArrayRecordName(path);
  return is_known && fs::is_regular_file(path) &&
         std::find(std::begin(kNoRows), std::end(kNoRows), path.filename()) == std::end(kNoRows);
}

using Splits = std::map<std::string, std::vector<fs::path>>;

void AddSplitsOf(const fs::path& folder, Splits& splits) {
  for (const fs::path& entry : Entries(folder)) {
    if (IsRowFile(entry)) {
      splits[ShardOf(entry).split].push_back(entry);
      continue;
    }
    const std::string name = entry.filename().string();
    if (!fs::is_directory(entry) || name.starts_with(".") || name == "data" || name == "default") {
      continue;
    }
    for (const fs::path& file : Entries(entry)) {
      if (IsRowFile(file)) splits[name].push_back(file);
    }
  }
}

// Shards of 3 must be 0, 1 and 2, each once.
void CheckComplete(const std::vector<fs::path>& files) {
  uint64_t expected = 0;
  std::optional<uint64_t> count;
  for (const fs::path& file : files) {
    const ShardName name = ShardOf(file);
    if (!name.number) continue;
    if (!count) count = name.number->second;
    if (name.number->first != expected || name.number->second != *count) {
      throw Error(ErrorCode::kInvalidArgument,
                  file.string() + ": expected shard " + std::to_string(expected) + " of " +
                      std::to_string(*count) +
                      "; put all files of one version of the split in the directory");
    }
    ++expected;
  }
  if (count && expected != *count) {
    throw Error(ErrorCode::kInvalidArgument,
                files.back().string() + ": the next shards are missing; the directory has " +
                    std::to_string(expected) + " of " + std::to_string(*count));
  }
}

std::vector<fs::path> OfDirectory(const fs::path& folder, const std::string& split) {
  Splits splits;
  AddSplitsOf(folder, splits);
  for (const char* inner : {"data", "default"}) {
    if (fs::is_directory(folder / inner)) AddSplitsOf(folder / inner, splits);
  }
  if (splits.empty()) {
    throw Error(ErrorCode::kNotFound,
                folder.string() +
                    ": the directory has no file of rows (.parquet, .csv, .jsonl, .ndjson, .json, "
                    ".array_record)");
  }
  std::string names;
  for (const auto& [name, files] : splits) {
    names += (names.empty() ? "" : ", ") + (name.empty() ? "one without a name" : name);
  }
  if (split.empty() && splits.size() > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                folder.string() +
                    ": has several splits; set data.train_split or data.eval_split to one of " +
                    Quoted(names, 400));
  }
  const auto found = split.empty() ? splits.begin() : splits.find(split);
  if (found == splits.end()) {
    throw Error(ErrorCode::kInvalidArgument, folder.string() + ": has no split " + Quoted(split) +
                                                 "; its splits are " + Quoted(names, 400));
  }
  CheckComplete(found->second);
  return found->second;
}

std::vector<fs::path> OfPattern(const fs::path& pattern) {
  const fs::path folder = pattern.has_parent_path() ? pattern.parent_path() : fs::path(".");
  std::vector<fs::path> files;
  if (fs::is_directory(folder)) {
    for (const fs::path& entry : Entries(folder)) {
      const bool matches = Matches(pattern.filename().string(), entry.filename().string());
      if (matches && fs::is_regular_file(entry)) files.push_back(entry);
    }
  }
  if (files.empty()) throw Error(ErrorCode::kNotFound, pattern.string() + ": no file matches");
  return files;
}

// The first word of a small file; empty when there is none.
std::string WordOf(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// A data set in the hub's cache stores its versions in `snapshots`, named in `refs`.
fs::path OutOfCache(const fs::path& folder) {
  const fs::path snapshots = folder / "snapshots";
  if (!fs::is_directory(snapshots)) return folder;
  const std::string main = WordOf(folder / "refs" / "main");
  if (!main.empty() && fs::is_directory(snapshots / main)) return snapshots / main;
  const std::vector<fs::path> versions = Entries(snapshots);
  if (versions.size() == 1) return versions.front();
  throw Error(
      ErrorCode::kNotFound,
      snapshots.string() + ": has " + std::to_string(versions.size()) +
          " versions of the data set and refs/main names none of them; give the path of one");
}

bool HasAny(const fs::path& path, std::string_view marks) {
  return path.string().find_first_of(marks) != std::string::npos;
}

// ORG/NAME, the form of the hub's repository names.
bool LooksLikeHubName(const fs::path& path) {
  const std::string text = path.string();
  return !text.starts_with('.') && !text.starts_with('/') &&
         std::count(text.begin(), text.end(), '/') == 1 && !text.ends_with('/') &&
         !path.has_extension();
}

void CheckOneKind(const fs::path& path, const std::vector<fs::path>& files) {
  const auto n = std::count_if(files.begin(), files.end(), IsParquetName);
  if (n == 0 || n == static_cast<std::ptrdiff_t>(files.size())) return;
  throw Error(ErrorCode::kInvalidArgument,
              path.string() + ": only some of the files are Parquet (" +
                  files.front().filename().string() + " … " + files.back().filename().string() +
                  "); select one kind with a pattern");
}

std::vector<fs::path> OfOne(const fs::path& path, const std::string& split) {
  if (fs::is_directory(path)) return OfDirectory(OutOfCache(path), split);
  if (!split.empty() && fs::exists(path)) {
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": a split (" + Quoted(split) +
                                                 ") needs a directory, and this is a file");
  }
  // A file may have any name; a path is a pattern only if no such file exists.
  if (fs::exists(path)) return {path};
  if (HasAny(path.filename(), kPatternMarks)) return OfPattern(path);
  std::string what = path.string() + ": no such file or directory";
  if (LooksLikeHubName(path)) {
    what += "; if it is a data set of the hub, download it with `hf download " + path.string() +
            " --repo-type dataset` (tandem pull downloads models only), or give its directory";
  }
  throw Error(ErrorCode::kNotFound, what);
}

}  // namespace

std::vector<fs::path> PartsOfList(const fs::path& path) {
  const std::string text = path.string();
  std::vector<fs::path> parts;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(kListMark, from), text.size());
    if (end > from) parts.emplace_back(text.substr(from, end - from));
    from = end + 1;
  }
  return parts;
}

bool IsParquetName(const fs::path& path) { return ExtensionOf(path) == ".parquet"; }

bool IsArrayRecordName(const fs::path& path) {
  return ArrayRecordMark(path.filename().string()).has_value();
}

RowContainer ContainerOf(const fs::path& path) {
  const std::string extension = ExtensionOf(WithoutCompression(path));
  if (extension == ".parquet") return RowContainer::kParquet;
  return extension == ".csv" ? RowContainer::kCsv : RowContainer::kJson;
}

bool MeansShards(const fs::path& path) {
  if (fs::exists(path)) return fs::is_directory(path);
  return HasAny(path, kPatternMarks) || HasAny(path, std::string_view(&kListMark, 1));
}

std::vector<fs::path> ListShards(const fs::path& path, const std::string& split) {
  std::vector<fs::path> files;
  const bool is_list = !fs::exists(path) && HasAny(path, std::string_view(&kListMark, 1));
  for (const fs::path& part : is_list ? PartsOfList(path) : std::vector<fs::path>{path}) {
    for (fs::path& file : OfOne(part, split)) files.push_back(std::move(file));
  }
  CheckOneKind(path, files);
  return files;
}

}  // namespace tandem::training
