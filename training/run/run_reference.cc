#include "training/run/run_reference.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/io/crc32c.h"
#include "engine/io/json.h"
#include "engine/io/sha256.h"
#include "training/data/order/permutation.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr size_t kMaxHeaderBytes = 4096;
constexpr auto kReportEvery = std::chrono::seconds(30);

// Everything that the values in a file depend on.
struct Identity {
  std::string weights;
  std::string pairs;

  bool operator==(const Identity&) const = default;
};

struct Stored {
  Identity identity;
  std::vector<PairLogProbs> values;
};

std::string Hash(const std::string& text) {
  return engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))));
}

// Identifies the initial weights by their source.
std::string WeightsIdentity(const ReferenceJob& job) {
  const RunParts& parts = job.parts;
  const TrainSpec& spec = parts.spec;
  std::string text =
      parts.files.texts.at("config.json") + std::string(engine::DTypeName(spec.compute)) + "\n";
  if (parts.is_adapter()) {
    text += "base " + parts.trainer.base()->content_hash() + " " +
            parts.trainer.base()->weights_type() + "\n";
    // A new adapter changes nothing before training, whatever its A.
    if (!spec.lora.load_path.empty()) {
      text += "adapter " + engine::LoraAdapter::Open(spec.lora.load_path).content_hash() + "\n";
    }
  } else if (!spec.model.load_parameters_path.empty()) {
    const auto dir = engine::ModelDir::Open(spec.model.load_parameters_path);
    text += "model " +
            dir.ContentHash(job.cache_dir.empty() ? fs::path() : job.cache_dir / "hashes") + "\n";
  } else {
    text += "fresh " + std::to_string(spec.model.init_seed) + " " +
            std::to_string(static_cast<int>(spec.model.init)) + " " +
            ordered_json(spec.model.init_std).dump() + "\n";
  }
  return Hash(text);
}

std::string TrainPairs(const RunParts& parts) {
  const DataSection& data = parts.spec.data;
  return Hash(std::to_string(parts.data.report.pairs_hash) + " " +
              std::to_string(parts.data.source->size()) + " " +
              std::to_string(data.max_target_length) + " " +
              std::to_string(static_cast<int>(data.overflow)));
}

// Identifies the evaluated pairs by their layout in the batches.
std::string EvalPairs(const ValidationSet& validation) {
  uint64_t hash = 0;
  const auto add = [&hash](int64_t value) {
    hash = HashCounter(hash, static_cast<uint64_t>(value));
  };
  for (const MicroBatch& batch : validation.batches()) {
    for (const PairRows& pair : batch.pairs) {
      add(pair.index);
      add(pair.chosen.n_rows);
      const int64_t end = pair.rejected.first_row + pair.rejected.n_rows;
      for (int64_t row = pair.chosen.first_row; row < end; ++row) {
        add(batch.tokens[static_cast<size_t>(row)]);
        add(batch.targets[static_cast<size_t>(row)]);
      }
    }
  }
  return Hash(std::to_string(hash));
}

void Write(const fs::path& path, const Stored& stored) {
  static_assert(sizeof(PairLogProbs) == 2 * sizeof(double));
  const auto body = std::as_bytes(std::span(stored.values));
  const ordered_json header = {
      {"format", "tandem-reference"},       {"version", kVersion},
      {"weights", stored.identity.weights}, {"pairs", stored.identity.pairs},
      {"n", stored.values.size()},          {"crc32c", engine::Crc32c(0, body)}};
  std::string text = header.dump() + "\n";
  text.append(reinterpret_cast<const char*>(body.data()), body.size());
  MakeDirectories(path.parent_path());
  engine::WriteFileAtomically(path, text);
}

// Throws Error when Write did not produce the file.
Stored Parse(const std::string& text, const std::string& source) {
  const size_t end = text.find('\n');
  if (end == std::string::npos || end > kMaxHeaderBytes) {
    throw Error(ErrorCode::kDataLoss, source + ": has no header");
  }
  const ordered_json header = engine::ParseUntrustedJson(text.substr(0, end), source);
  if (!header.is_object() || engine::JsonInt(header, "version", 0, INT64_MAX, source) != kVersion) {
    throw Error(ErrorCode::kUnsupported, source + ": unknown version");
  }
  Stored stored;
  stored.identity.weights = engine::JsonStringOr(header, "weights", "", source);
  stored.identity.pairs = engine::JsonStringOr(header, "pairs", "", source);
  const std::string_view body = std::string_view(text).substr(end + 1);
  const auto n = static_cast<size_t>(engine::JsonInt(header, "n", 0, int64_t{1} << 40, source));
  const auto crc = engine::JsonInt(header, "crc32c", 0, UINT32_MAX, source);
  if (body.size() != n * sizeof(PairLogProbs) ||
      engine::Crc32c(0, std::as_bytes(std::span(body))) != static_cast<uint32_t>(crc)) {
    throw Error(ErrorCode::kDataLoss, source + ": is damaged");
  }
  stored.values.resize(n);
  if (n > 0) std::memcpy(stored.values.data(), body.data(), body.size());
  return stored;
}

// Absent when the file is missing or damaged. Warns about damage.
std::optional<Stored> Read(const fs::path& path, size_t n_pairs,
                           const std::function<void(const std::string&)>& warn) {
  if (!fs::exists(path)) return std::nullopt;
  std::optional<Stored> stored;
  const auto error = ErrorOf([&] {
    const size_t most = kMaxHeaderBytes + n_pairs * sizeof(PairLogProbs);
    stored = Parse(engine::ReadWholeFile(path, std::max<size_t>(most, fs::file_size(path))),
                   path.string());
  });
  if (error) warn(error->what());  // the caller computes it anew
  return stored;
}

// Reports progress every kReportEvery.
class Progress {
 public:
  Progress(const ReferenceJob& job, int64_t n)
      : job_(job), n_(n), task_("computing the reference", "pairs", n) {
    job.report("reference: computing log-probabilities of " + std::to_string(n) +
               " pairs with the initial weights");
  }
  void Done(int64_t pairs) {
    task_.Reach(pairs);
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kReportEvery) return;
    last_ = now;
    job_.report("reference: " + std::to_string(pairs) + " of " + std::to_string(n_) + " pairs");
  }

 private:
  const ReferenceJob& job_;
  int64_t n_;
  ProgressTask task_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// The next micro-batch; the same ones on all ranks. Absent after the last one.
using NextBatch = std::function<std::optional<MicroBatch>()>;
using UseValues =
    std::function<void(const MicroBatch& batch, std::span<const PairLogProbs> values)>;

// Ranks compute the batches in rounds, each rank (with those that share its matrices) one of a
// round. All ranks get the values of all batches, in order. A rank waits for the others after each
// round, so never for longer than a batch takes. Returns false after a stop request to any rank.
bool ComputeTogether(const ReferenceJob& job, const NextBatch& next, const UseValues& use) {
  constexpr auto kRows = Collectives::Group::kRows;
  Collectives* const ranks = job.parts.ranks;
  const size_t size = ranks == nullptr ? 1 : static_cast<size_t>(ranks->size_of(kRows));
  const size_t rank = ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank_in(kRows));
  while (true) {
    const bool stops = job.stop.stop_requested();
    if (ranks == nullptr ? stops : ranks->AnyRank(stops)) return false;
    std::vector<MicroBatch> round;
    size_t most = 0;
    while (round.size() < size) {
      auto batch = next();
      if (!batch) break;
      most = std::max(most, batch->pairs.size());
      round.push_back(std::move(*batch));
    }
    if (round.empty()) return true;
    // Ranks that share weights run equally often: those without a batch compute the last one too.
    std::vector<PairLogProbs> values =
        LogProbsOfPairs(job.parts.trainer.executor(), round[std::min(rank, round.size() - 1)]);
    if (ranks != nullptr) {
      values.resize(most);
      std::vector<PairLogProbs> all(most * size);
      ranks->AllGather(std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(all)),
                       kRows);
      values = std::move(all);
    }
    for (size_t i = 0; i < round.size(); ++i) {
      use(round[i], std::span(values).subspan(i * most, round[i].pairs.size()));
    }
  }
}

// Log-probabilities of all training pairs, in source order; absent after a stop request.
std::optional<std::vector<PairLogProbs>> ComputeTrain(const ReferenceJob& job) {
  RunParts& parts = job.parts;
  const int64_t n = parts.data.source->size();
  PackerOptions options = PackerOptionsOf(parts.spec, parts.data);
  options.mixture.clear();  // every pair once
  options.shuffle = false;
  options.n_epochs = 1;
  Packer packer(options, [&](int64_t i) { return parts.data.source->Make(i); });
  PackedRow row;
  bool more = packer.Next(&row);
  const auto next = [&]() -> std::optional<MicroBatch> {
    if (!more) return std::nullopt;
    MicroBatch batch;
    for (int64_t r = 0; r < parts.spec.rows_per_batch(); ++r) {
      batch.Append(more ? row : PaddingRow(options.row_length, options.pad, options.max_sequence));
      more = more && packer.Next(&row);
    }
    return batch;
  };
  std::vector<PairLogProbs> values(static_cast<size_t>(n));
  Progress progress(job, n);
  int64_t done = 0;
  const auto use = [&](const MicroBatch& batch, std::span<const PairLogProbs> logprobs) {
    for (size_t i = 0; i < logprobs.size(); ++i) {
      values[static_cast<size_t>(batch.pairs[i].index)] = logprobs[i];
    }
    done += static_cast<int64_t>(logprobs.size());
    progress.Done(done);
  };
  if (!ComputeTogether(job, next, use)) return std::nullopt;
  TANDEM_CHECK(done == n);
  return values;
}

// Log-probabilities of the validation pairs, in batch order; absent after a stop request.
std::optional<std::vector<PairLogProbs>> ComputeEval(const ReferenceJob& job) {
  const std::span<const MicroBatch> batches = std::as_const(*job.validation).batches();
  size_t i = 0;
  const auto next = [&]() -> std::optional<MicroBatch> {
    if (i == batches.size()) return std::nullopt;
    return batches[i++];
  };
  std::vector<PairLogProbs> values;
  const auto use = [&](const MicroBatch&, std::span<const PairLogProbs> logprobs) {
    values.insert(values.end(), logprobs.begin(), logprobs.end());
  };
  if (!ComputeTogether(job, next, use)) return std::nullopt;
  return values;
}

size_t CountPairs(const ValidationSet* validation) {
  size_t n = 0;
  if (validation == nullptr) return n;
  for (const MicroBatch& batch : std::as_const(*validation).batches()) n += batch.pairs.size();
  return n;
}

void GiveTo(std::span<MicroBatch> batches, std::span<const PairLogProbs> values) {
  size_t next = 0;
  for (MicroBatch& batch : batches) {
    for (PairRows& pair : batch.pairs) pair.reference = values[next++];
  }
}

[[noreturn]] void ThrowOtherWeights(const fs::path& path) {
  throw Error(ErrorCode::kInvalidArgument,
              path.string() +
                  ": the run started with different weights than the spec has now (model, "
                  "adapter or precision); choose another run_name, or set checkpoint.resume=false");
}

// The values on disk and what they belong to, on the first rank.
class Files {
 public:
  explicit Files(const ReferenceJob& job)
      : job_(job),
        train_path_(job.dir / "reference" / "train"),
        eval_path_(job.dir / "reference" / "eval"),
        train_{WeightsIdentity(job), TrainPairs(job.parts)},
        eval_{train_.weights, job.validation ? EvalPairs(*job.validation) : ""} {}

  std::optional<std::vector<PairLogProbs>> ReadTrain() const {
    auto values = ReadOne(train_path_, train_, static_cast<size_t>(job_.parts.data.source->size()));
    if (job_.resumes && !values) {
      job_.warn("the reference is computed again, with the weights of the spec");
    }
    return values;
  }
  std::optional<std::vector<PairLogProbs>> ReadEval() const {
    return ReadOne(eval_path_, eval_, CountPairs(job_.validation));
  }
  void WriteTrain(const std::vector<PairLogProbs>& values) const {
    Write(train_path_, {train_, values});
  }
  void WriteEval(const std::vector<PairLogProbs>& values) const {
    Write(eval_path_, {eval_, values});
  }

 private:
  std::optional<std::vector<PairLogProbs>> ReadOne(const fs::path& path, const Identity& ours,
                                                   size_t n) const {
    std::optional<Stored> stored = Read(path, n, job_.warn);
    if (!stored) return std::nullopt;
    if (stored->identity == ours) return std::move(stored->values);
    if (job_.resumes && stored->identity.weights != ours.weights) ThrowOtherWeights(path);
    if (job_.resumes) {
      job_.warn(path.string() + ": the pairs have changed; the reference is computed again");
    }
    return std::nullopt;
  }

  const ReferenceJob& job_;
  const fs::path train_path_;
  const fs::path eval_path_;
  const Identity train_;
  const Identity eval_;
};

// Gives the first rank's values to all ranks; false: it has none.
bool Share(Collectives* ranks, std::optional<std::vector<PairLogProbs>>* values) {
  if (ranks == nullptr) return values->has_value();
  double n = *values ? static_cast<double>((*values)->size()) : -1;
  n = ranks->AllGather({&n, 1}).front();
  if (n < 0) return false;
  if (!*values) values->emplace(static_cast<size_t>(n));
  ranks->Broadcast(std::as_writable_bytes(std::span(**values)), 0);
  return true;
}

}  // namespace

bool PrepareReference(const ReferenceJob& job) {
  std::optional<Files> files;
  std::optional<std::vector<PairLogProbs>> train;
  std::optional<std::vector<PairLogProbs>> eval;
  if (job.parts.is_first_rank()) {
    files.emplace(job);
    train = files->ReadTrain();
    if (job.validation) eval = files->ReadEval();
  }
  const bool has_train = Share(job.parts.ranks, &train);
  const bool has_eval = !job.validation || Share(job.parts.ranks, &eval);
  const bool must_compute = !has_train || !has_eval;
  if (must_compute) {
    InitialWeights(job.parts);
    job.parts.trainer.MastersChanged();
  }
  if (!has_train) {
    train = ComputeTrain(job);
    if (!train) return must_compute;
    if (files) files->WriteTrain(*train);
  }
  if (!has_eval) {
    eval = ComputeEval(job);
    if (!eval) return must_compute;
    if (files) files->WriteEval(*eval);
  }
  if (job.validation) GiveTo(job.validation->batches(), *eval);
  job.parts.reference = std::move(*train);
  return must_compute;
}

}  // namespace tandem::training
