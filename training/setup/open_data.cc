#include "training/setup/open_data.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/chat/chat_template.h"
#include "engine/io/sha256.h"
#include "training/data/array_record/array_record_rows.h"
#include "training/data/csv_rows.h"
#include "training/data/joined_rows.h"
#include "training/data/joined_samples.h"
#include "training/data/json_rows.h"
#include "training/data/order/permutation.h"
#include "training/data/parquet/parquet_data_set.h"
#include "training/data/shard_list.h"
#include "training/data/synthetic_samples.h"
#include "training/data/text_bytes.h"
#include "training/data/text_source.h"
#include "training/setup/checked_rows.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string ExtensionOf(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

// Rows of Parquet files. Decodes only the columns that the format reads.
class ParquetRowFile final : public RowFile {
 public:
  explicit ParquetRowFile(std::shared_ptr<const ParquetDataSet> set) : set_(std::move(set)) {}

  int64_t size() const override { return set_->size(); }
  ordered_json Read(int64_t i) const override { return set_->Read(i); }
  std::string Where(int64_t i) const override { return set_->Where(i); }
  const std::string& name() const override { return set_->name(); }

 private:
  std::shared_ptr<const ParquetDataSet> set_;
};

std::shared_ptr<const RowFile> OpenParquet(const std::vector<fs::path>& files, RowFormat format,
                                           const std::vector<std::string>& given, RowKind kind,
                                           const ParquetOptions& options) {
  auto set = ParquetDataSet::Open(files, {}, options);
  if (format == RowFormat::kAuto) format = DetectFormat(ParquetRowFile(set), given, kind);
  std::vector<std::string> wanted = ColumnsOf(format, given);
  wanted.emplace_back("chat_template_kwargs");
  std::vector<std::string> columns;
  for (const std::string& column : set->columns()) {
    if (std::find(wanted.begin(), wanted.end(), column) != wanted.end()) columns.push_back(column);
  }
  // Without any wanted column, all are decoded and the row check reports what is missing.
  if (!columns.empty()) set = ParquetDataSet::Open(files, columns, options);
  return std::make_shared<const ParquetRowFile>(std::move(set));
}

RowContainer GivenContainer(const TrainSpec& spec, DataSplit split) {
  return split == DataSplit::kTrain ? spec.data.container : spec.data.eval_container;
}

// Pre-training reads plain text unless the file's name means rows. Fine-tuning reads rows unless
// the name ends in .txt.
bool IsPlain(const TrainSpec& spec, const fs::path& path, DataSplit split) {
  if (spec.is_dpo() || GivenContainer(spec, split) != RowContainer::kAuto) return false;
  if (spec.data.format != RowFormat::kAuto) return spec.data.format == RowFormat::kPlain;
  const std::string extension = ExtensionOf(WithoutCompression(path));
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") return false;
  if (ContainerOf(path) != RowContainer::kJson || MeansShards(path)) return false;
  if (IsArrayRecordName(path)) return false;
  // A missing file opens as rows, whose error names the file.
  return extension == ".txt" || (spec.kind == "train.pretrain" && fs::exists(path));
}

RowKind RowKindOf(const TrainSpec& spec) {
  return spec.is_dpo() ? RowKind::kPairs : RowKind::kExamples;
}

bool CompletionOnly(const TrainSpec& spec) {
  return spec.data.train_on_completion_only.value_or(spec.kind != "train.pretrain");
}

SampleOptions SampleOptionsOf(const TrainSpec& spec, const ModelFiles& files) {
  SampleOptions options;
  if (spec.data.add_bos) options.bos = files.bos;
  if (spec.data.add_eos) options.eos = files.eos;
  options.content_word_header = spec.data.header == Header::kContentWords;
  options.seed = spec.data.seed;
  return options;
}

EncoderOptions EncoderOptionsOf(const TrainSpec& spec, const ModelFiles& files) {
  EncoderOptions options;
  options.completion_only = CompletionOnly(spec);
  if (spec.data.add_bos) options.bos = files.bos;
  if (spec.data.add_eos) options.eos = files.eos;
  options.bos_text = files.bos_text;
  options.eos_text = files.eos_text;
  options.now_unix_s = spec.data.template_unix_s;
  return options;
}

// Auto: instructions become a chat when the model has a template; prompts stay plain text.
bool AsChat(const TrainSpec& spec, const ModelFiles& files, RowFormat format) {
  if (spec.data.apply_template != ApplyTemplate::kAuto) {
    return spec.data.apply_template == ApplyTemplate::kAlways;
  }
  return format == RowFormat::kInstruction && !files.template_source.empty();
}

std::string Sha256Hex(const std::string& text) {
  return engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))));
}

std::string TokenizerHash(const ModelFiles& files) {
  engine::Sha256 hash;
  for (const auto& [name, text] : files.texts) {
    // Excludes files that every export rewrites, and the chat template, which has its own hash.
    if (name == "config.json" || name == "generation_config.json" ||
        name == "tokenizer_config.json" || name == "chat_template.jinja") {
      continue;
    }
    hash.Update(name + " " + std::to_string(text.size()) + "\n");
    hash.Update(text);
  }
  return engine::ToHex(hash.Finish());
}

const std::vector<std::string>& GivenColumns(const TrainSpec& spec, DataSplit split) {
  const bool own = split == DataSplit::kEval && !spec.data.eval_columns.empty();
  return own ? spec.data.eval_columns : spec.data.columns;
}

const std::string& SplitOf(const TrainSpec& spec, DataSplit split) {
  return split == DataSplit::kTrain ? spec.data.train_split : spec.data.eval_split;
}

void RefuseSplit(const TrainSpec& spec, DataSplit split, const fs::path& path) {
  if (SplitOf(spec, split).empty()) return;
  throw Error(ErrorCode::kInvalidArgument, path.string() + ": a split (" +
                                               Quoted(SplitOf(spec, split)) +
                                               ") needs a directory, and this is a text file");
}

RowOptions RowOptionsOf(const TrainSpec& spec, const OpenDataOptions& wanted) {
  RowOptions options;
  options.turns = spec.data.turns;
  options.on_bad_row = spec.data.on_bad_row;
  options.max_tokens = spec.data.max_target_length + 1;
  options.max_prompt_tokens = spec.dpo.max_prompt_length;
  options.overflow = spec.data.overflow;
  if (spec.is_dpo()) {
    options.keep_lengths = wanted.keep_lengths;
    return options;  // a pair cannot be split
  }
  // Validation cuts nothing off unless a teacher reads whole samples, and a stream has no long
  // samples.
  if ((wanted.split == DataSplit::kEval && !spec.is_distill()) ||
      spec.data.packing == Packing::kConcatThenSplit) {
    options.overflow = Overflow::kSplit;
  }
  options.keep_lengths = wanted.keep_lengths;
  return options;
}

std::shared_ptr<const RowFile> OpenText(const fs::path& file, RowContainer container,
                                        const std::shared_ptr<ChunkCache>& cache) {
  if (container == RowContainer::kAuto && IsArrayRecordName(file)) {
    return ArrayRecordRows::Open(file, cache);
  }
  if (container == RowContainer::kAuto) container = ContainerOf(file);
  if (container == RowContainer::kCsv) return CsvRows::Open(file);
  return JsonRows::Open(file);
}

std::shared_ptr<const RowFile> OpenRowFile(const TrainSpec& spec,
                                           const std::vector<fs::path>& files,
                                           const std::vector<std::string>& given,
                                           const OpenDataOptions& wanted) {
  const RowContainer container = GivenContainer(spec, wanted.split);
  const bool is_parquet = container == RowContainer::kAuto ? IsParquetName(files.front())
                                                           : container == RowContainer::kParquet;
  if (is_parquet) {
    ParquetOptions options;
    if (wanted.row_group_bytes > 0) options.row_group_bytes = wanted.row_group_bytes;
    return OpenParquet(files, spec.data.format, given, RowKindOf(spec), options);
  }
  const auto cache = std::make_shared<ChunkCache>();  // of all files
  if (files.size() == 1) return OpenText(files.front(), container, cache);
  std::vector<std::shared_ptr<const RowFile>> parts;
  for (const fs::path& file : files) parts.push_back(OpenText(file, container, cache));
  return std::make_shared<const JoinedRows>(std::move(parts));
}

// Everything besides the rows that decides the samples and which of them are kept.
std::string SettingsOf(const TrainSpec& spec, const ModelFiles& files, const RowOptions& options) {
  const TokIdentity identity = IdentityOf(spec, files);
  return ordered_json{{"tokenizer", identity.tokenizer_sha256},
                      {"template", identity.template_sha256},
                      {"options", identity.options},
                      {"format", NameOf(options.example.format)},
                      {"columns", options.example.columns},
                      {"as_chat", options.example.instructions_as_chat},
                      {"container", static_cast<int>(spec.data.container)},
                      {"eval_container", static_cast<int>(spec.data.eval_container)},
                      {"max_tokens", options.max_tokens},
                      {"overflow", static_cast<int>(options.overflow)}}
      .dump();
}

void OpenRows(const TrainSpec& spec, const ModelFiles& files, const fs::path& path,
              ThreadPool& pool, const OpenDataOptions& wanted, OpenedData* data) {
  if (spec.data.header != Header::kNone) {
    throw Error(ErrorCode::kInvalidArgument,
                "data.header: must be none for rows; it applies to plain text only");
  }
  const std::vector<std::string>& given = GivenColumns(spec, wanted.split);
  const std::vector<fs::path> shards = ListShards(path, SplitOf(spec, wanted.split));
  const std::shared_ptr<const RowFile> rows = OpenRowFile(spec, shards, given, wanted);
  data->files = shards;
  data->format = spec.data.format == RowFormat::kAuto ? DetectFormat(*rows, given, RowKindOf(spec))
                                                      : spec.data.format;

  RowOptions options = RowOptionsOf(spec, wanted);
  options.example.format = data->format;
  options.example.columns = ColumnsOf(data->format, given);
  options.example.instructions_as_chat = AsChat(spec, files, data->format);
  EncoderOptions encoder_options = EncoderOptionsOf(spec, files);
  options.is_enough = wanted.is_enough;
  options.may_be_empty = wanted.may_be_empty;
  if (wanted.is_cancelled) {
    options.is_cancelled = [is_cancelled = wanted.is_cancelled] { return is_cancelled(0); };
    encoder_options.is_cancelled = wanted.is_cancelled;
  }
  const bool is_chat =
      data->format == RowFormat::kMessages || data->format == RowFormat::kShareGpt ||
      data->format == RowFormat::kOpenAiPreference || options.example.instructions_as_chat;
  if (is_chat && files.template_source.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "model.chat_template: must be given, since the rows of " + path.string() +
                    " are chats and the tokenizer has no chat template");
  }
  std::shared_ptr<const engine::ChatTemplate> chat_template;
  if (!files.template_source.empty()) {
    chat_template = engine::ChatTemplate::Compile(files.template_source);
  }
  const auto encoder = std::make_shared<const SampleEncoder>(
      std::move(chat_template), *files.tokenizer, std::move(encoder_options));
  options.example.developer_as_system = encoder->developer_as_system();
  // Pairs also need their hash, which the record does not hold.
  const std::string key = wanted.record.empty() || spec.is_dpo()
                              ? ""
                              : KeyOfRows(shards, SettingsOf(spec, files, options));
  if (const auto known = ReadCheckedRows(wanted.record, key);
      known && known->rows == rows->size()) {
    data->is_known = true;
    data->report = *known;
    data->source = RowSource::OpenChecked(rows, encoder, options);
    return;
  }
  auto source = RowSource::Open(rows, encoder, options, pool, &data->report, wanted.visit);
  if (source->is_every_row()) WriteCheckedRows(wanted.record, key, data->report);
  data->source = std::move(source);
}

}  // namespace

TokIdentity IdentityOf(const TrainSpec& spec, const ModelFiles& files) {
  TokIdentity identity;
  identity.tokenizer_sha256 = TokenizerHash(files);
  identity.template_sha256 = Sha256Hex(files.template_source);
  const EncoderOptions encoder = EncoderOptionsOf(spec, files);
  identity.options = ordered_json{{"encoder_version", kEncoderVersion},
                                  {"format", NameOf(spec.data.format)},
                                  {"columns", spec.data.columns},
                                  {"train_on_completion_only", encoder.completion_only},
                                  {"apply_template", static_cast<int>(spec.data.apply_template)},
                                  {"turns", static_cast<int>(spec.data.turns)},
                                  {"bos", encoder.bos.value_or(-1)},
                                  {"eos", encoder.eos.value_or(-1)},
                                  {"bos_text", encoder.bos_text},
                                  {"eos_text", encoder.eos_text},
                                  {"template_unix_s", encoder.now_unix_s}}
                         .dump();
  identity.vocab_size = files.tokenizer->vocab_size();
  return identity;
}

namespace {

void AddCounts(const DataReport& one, DataReport* sum) {
  sum->rows += one.rows;
  sum->checked += one.checked;
  sum->samples += one.samples;
  sum->bad_rows += one.bad_rows;
  sum->split_rows += one.split_rows;
  sum->tokens += one.tokens;
  sum->trained_tokens += one.trained_tokens;
  sum->longest = std::max(sum->longest, one.longest);
  sum->over_length += one.over_length;
  sum->zero_loss += one.zero_loss;
  sum->pairs_hash =
      one.pairs_hash == 0 ? sum->pairs_hash : HashCounter(sum->pairs_hash, one.pairs_hash);
  sum->listed.insert(sum->listed.end(), one.listed.begin(), one.listed.end());
  sum->lengths.insert(sum->lengths.end(), one.lengths.begin(), one.lengths.end());
  sum->hashes.insert(sum->hashes.end(), one.hashes.begin(), one.hashes.end());
}

// checked-rows.json of the part i: checked-rows-2.json.
fs::path RecordOfPart(const fs::path& record, size_t i) {
  if (record.empty()) return {};
  fs::path name = record.stem();
  name += "-" + std::to_string(i + 1);
  name += record.extension();
  return record.parent_path() / name;
}

// Opens every part of data.train on its own.
OpenedData OpenMixture(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool,
                       const OpenDataOptions& options) {
  OpenedData data;
  std::vector<JoinedSamples::Part> parts;
  std::vector<int64_t> sizes;
  bool all_rows = true;
  bool all_known = true;
  data.is_prepared = true;
  for (const fs::path& path : PartsOfList(spec.data.train)) {
    TrainSpec one = spec;
    one.data.train = path;
    one.data.mixture_weights.clear();
    OpenDataOptions of_part = options;
    of_part.record = RecordOfPart(options.record, parts.size());
    OpenedData opened = OpenData(one, files, pool, of_part);
    data.files.insert(data.files.end(), opened.files.begin(), opened.files.end());
    const bool is_rows = !opened.is_prepared && opened.format != RowFormat::kPlain;
    const std::string kind(opened.is_prepared ? "prepared" : NameOf(opened.format));
    if (data.kinds.find(kind) == std::string::npos) {
      data.kinds += (data.kinds.empty() ? "" : ", ") + kind;
    }
    if (is_rows) data.format = opened.format;
    all_rows = all_rows && is_rows;
    all_known = all_known && (opened.is_known || !is_rows);
    data.is_prepared = data.is_prepared && opened.is_prepared;
    AddCounts(opened.report, &data.report);
    sizes.push_back(opened.source->size());
    parts.push_back({path.filename().string(), std::move(opened.source)});
  }
  data.is_known = all_known && data.report.rows > 0;
  if (!all_rows) data.format = RowFormat::kPlain;
  data.mixture = MixtureOf(sizes, spec.data.mixture_weights);
  data.source = std::make_unique<JoinedSamples>(std::move(parts));
  return data;
}

}  // namespace

OpenedData OpenData(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool,
                    const OpenDataOptions& options) {
  if (options.split == DataSplit::kTrain && !spec.data.mixture_weights.empty()) {
    return OpenMixture(spec, files, pool, options);
  }
  OpenedData data;
  if (spec.data.synthetic && options.split == DataSplit::kTrain) {
    data.source = std::make_unique<SyntheticSamples>(spec.data.max_target_length + 1,
                                                     files.config.vocab_size, spec.data.seed);
    data.report.samples = data.source->size();
    return data;
  }
  const fs::path& path = options.split == DataSplit::kTrain ? spec.data.train : spec.data.eval;
  data.files = {path};
  if (TokFile::IsTokFile(path)) {
    if (spec.is_dpo()) {
      throw Error(ErrorCode::kInvalidArgument,
                  path.string() + ": a prepared file has no pairs; name the file of rows instead");
    }
    auto tok = TokFile::Open(path, IdentityOf(spec, files));
    data.is_prepared = true;
    data.report.tokens = tok->tokens();
    data.source = std::move(tok);
  } else if (IsPlain(spec, path, options.split)) {
    RefuseSplit(spec, options.split, path);
    data.source = std::make_unique<TextSource>(TextCorpus::Open(path, spec.data.delimiter),
                                               *files.tokenizer, SampleOptionsOf(spec, files));
  } else {
    OpenRows(spec, files, path, pool, options, &data);
  }
  data.report.samples = data.source->size();
  return data;
}

}  // namespace tandem::training
