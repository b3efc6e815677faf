#include "training/run/run_reference.h"

#include <chrono>
#include <cstring>
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

// Log-probabilities of all training pairs, in source order; absent after a stop request.
std::optional<std::vector<PairLogProbs>> ComputeTrain(const ReferenceJob& job) {
  RunParts& parts = job.parts;
  const int64_t n = parts.data.source->size();
  PackerOptions options = PackerOptionsOf(parts.spec, parts.data);
  options.mixture.clear();  // every pair once
  options.shuffle = false;
  options.n_epochs = 1;
  Packer packer(options, [&](int64_t i) { return parts.data.source->Make(i); });
  std::vector<PairLogProbs> values(static_cast<size_t>(n));
  Progress progress(job, n);
  int64_t done = 0;
  PackedRow row;
  bool more = packer.Next(&row);
  while (more) {
    if (job.stop.stop_requested()) return std::nullopt;
    MicroBatch batch;
    for (int64_t r = 0; r < parts.spec.rows_per_batch(); ++r) {
      batch.Append(more ? row : PaddingRow(options.row_length, options.pad, options.max_sequence));
      more = more && packer.Next(&row);
    }
    const auto logprobs = LogProbsOfPairs(parts.trainer.executor(), batch);
    for (size_t i = 0; i < logprobs.size(); ++i) {
      values[static_cast<size_t>(batch.pairs[i].index)] = logprobs[i];
    }
    done += static_cast<int64_t>(logprobs.size());
    progress.Done(done);
  }
  TANDEM_CHECK(done == n);
  return values;
}

// Log-probabilities of the validation pairs, in batch order; absent after a stop request.
std::optional<std::vector<PairLogProbs>> ComputeEval(const ReferenceJob& job) {
  std::vector<PairLogProbs> values;
  for (const MicroBatch& batch : job.validation->batches()) {
    if (job.stop.stop_requested()) return std::nullopt;
    const auto logprobs = LogProbsOfPairs(job.parts.trainer.executor(), batch);
    values.insert(values.end(), logprobs.begin(), logprobs.end());
  }
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

}  // namespace

bool PrepareReference(const ReferenceJob& job) {
  const fs::path train_path = job.dir / "reference" / "train";
  const fs::path eval_path = job.dir / "reference" / "eval";
  const auto n = static_cast<size_t>(job.parts.data.source->size());
  const Identity train{WeightsIdentity(job), TrainPairs(job.parts)};
  const Identity eval{train.weights, job.validation ? EvalPairs(*job.validation) : ""};
  std::optional<Stored> stored = Read(train_path, n, job.warn);
  std::optional<Stored> stored_eval;
  if (job.validation) stored_eval = Read(eval_path, CountPairs(job.validation), job.warn);

  const auto check = [&](std::optional<Stored>* one, const Identity& ours, const fs::path& path) {
    if (!*one || (*one)->identity == ours) return;
    if (job.resumes && (*one)->identity.weights != ours.weights) ThrowOtherWeights(path);
    if (job.resumes)
      job.warn(path.string() + ": the pairs have changed; the reference is computed again");
    one->reset();
  };
  check(&stored, train, train_path);
  check(&stored_eval, eval, eval_path);

  if (job.resumes && !stored) {
    job.warn("the reference is computed again, with the weights of the spec");
  }
  const bool must_compute = !stored || (job.validation && !stored_eval);
  if (must_compute && !job.has_weights) {
    InitialWeights(job.parts);
    job.parts.trainer.MastersChanged();
  }
  if (!stored) {
    auto values = ComputeTrain(job);
    if (!values) return must_compute;
    stored = Stored{train, std::move(*values)};
    Write(train_path, *stored);
  }
  if (job.validation && !stored_eval) {
    auto values = ComputeEval(job);
    if (!values) return must_compute;
    stored_eval = Stored{eval, std::move(*values)};
    Write(eval_path, *stored_eval);
  }
  if (job.validation) GiveTo(job.validation->batches(), stored_eval->values);
  job.parts.reference = std::move(stored->values);
  return must_compute;
}

void ShareReference(Collectives& ranks, RunParts& parts, ValidationSet* validation) {
  auto n = static_cast<double>(parts.reference.size());
  n = ranks.AllGather({&n, 1}).front();
  parts.reference.resize(static_cast<size_t>(n));
  ranks.Broadcast(std::as_writable_bytes(std::span(parts.reference)), 0);
  if (validation == nullptr) return;
  std::vector<PairLogProbs> values;
  for (const MicroBatch& batch : validation->batches()) {
    for (const PairRows& pair : batch.pairs) values.push_back(pair.reference);
  }
  ranks.Broadcast(std::as_writable_bytes(std::span(values)), 0);
  GiveTo(validation->batches(), values);
}

}  // namespace tandem::training
