#include "bench/cores/cores_bench.h"

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "bench/cores/record.h"
#include "bench/cores/report.h"
#include "bench/gemm_bench.h"
#include "bench/measure/paired.h"
#include "bench/step_sequences.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"

namespace tandem::bench {
namespace {

constexpr int64_t kContext = 16;  // tokens of a sequence before its decoded ones

// A kind of step.
struct Kind {
  const char* name;
  int64_t sequences;
  int64_t rows;  // of each sequence
  int64_t context;
};

// The inside of an engine, with its own threads.
class Stepper {
 public:
  Stepper(const std::shared_ptr<const engine::Model>& model, int threads,
          const CoresBenchOptions& options)
      : decode_steps_(options.decode_steps),
        hidden_dim_(model->config().hidden_dim),
        state_floats_(engine::ModelRunner::StateFloats(*model)),
        blocks_per_sequence_(BlocksFor(options)),
        pool_(threads),
        ops_(engine::Kernels(), pool_),
        kv_(engine::ModelRunner::KvShape(*model, blocks_per_sequence_ * (options.batch + 1))),
        runner_(model, ops_, std::max(options.prompt_tokens, options.batch * kContext),
                options.batch) {}

  // Returns the mean seconds of a step.
  double Seconds(const Kind& kind) {
    Sequences sequences = Begin(kind);
    const int64_t steps = StepsOf(kind);
    double seconds = 0;
    for (int64_t s = 0; s < steps; ++s) seconds += sequences.Step(kind.rows);
    return seconds / static_cast<double>(steps);
  }

  // Adds the recordings of one round.
  void Record(const Kind& kind, std::vector<ParallelRecord>& records) {
    Sequences sequences = Begin(kind);
    for (int64_t s = 0; s < StepsOf(kind); ++s) {
      ParallelTrace trace;
      sequences.Step(kind.rows);
      records.push_back(trace.Take());
    }
  }

 private:
  static int64_t BlocksFor(const CoresBenchOptions& options) {
    const int64_t decoded = kContext + options.decode_steps;
    return std::max(options.prompt_tokens, decoded) / engine::kTokensPerBlock + 2;
  }
  int64_t StepsOf(const Kind& kind) const { return kind.rows > 1 ? 1 : decode_steps_; }
  Sequences Begin(const Kind& kind) {
    Sequences sequences(runner_, kv_, hidden_dim_, state_floats_, kind.sequences,
                        blocks_per_sequence_);
    if (kind.context > 0) sequences.Step(kind.context);
    return sequences;
  }

  const int64_t decode_steps_;
  const int64_t hidden_dim_;
  const int64_t state_floats_;
  const int64_t blocks_per_sequence_;
  ThreadPool pool_;
  engine::OpsContext ops_;
  engine::KvCache kv_;
  engine::ModelRunner runner_;
};

// 1, 2, 4, … and `most`.
std::vector<int> ThreadCounts(int most) {
  std::vector<int> counts;
  for (int n = 1; n < most; n *= 2) counts.push_back(n);
  counts.push_back(most);
  return counts;
}

class CoresBench {
 public:
  CoresBench(const std::shared_ptr<const engine::Model>& model, int most_threads,
             const CoresBenchOptions& options)
      : options_(options),
        kinds_{{"prefill", 1, options.prompt_tokens, 0},
               {"one_stream", 1, 1, kContext},
               {"batch", options.batch, 1, kContext}} {
    report_.machine = ReadMachineInfo();
    report_.usable_cores = UsableCores();
    report_.family = model->config().family;
    report_.weights = model->weights_type();
    report_.kernels = engine::Kernels().key;
    report_.rounds = options.rounds;
    report_.threads = ThreadCounts(most_threads);
    for (const int threads : report_.threads) {
      steppers_.push_back(std::make_unique<Stepper>(model, threads, options));
    }
  }

  CoresReport Run(const std::function<double(int threads)>& read_rate) {
    report_.costs = MeasurePoolCosts();
    report_.read_one = read_rate(1);
    const int most = report_.threads.back();
    report_.read_all = most == 1 ? report_.read_one : read_rate(most);
    for (const Kind& kind : kinds_) {
      report_.cases.push_back(Measure(kind));
      Simulate(report_.cases.back());
    }
    return std::move(report_);
  }

 private:
  // Thread counts take turns; the first round of each faults pages in and counts for nothing.
  CoresReport::Case Measure(const Kind& kind) {
    std::vector<std::vector<double>> seconds(steppers_.size());
    std::vector<ParallelRecord> records;
    for (const auto& stepper : steppers_) stepper->Seconds(kind);
    for (int round = 0; round < options_.rounds; ++round) {
      for (size_t i = 0; i < steppers_.size(); ++i) {
        seconds[i].push_back(steppers_[i]->Seconds(kind));
      }
      steppers_.front()->Record(kind, records);
    }
    CoresReport::Case result;
    result.name = kind.name;
    result.tokens = kind.sequences * kind.rows;
    for (auto& of_count : seconds) result.seconds.push_back(Median(std::move(of_count)));
    result.record = MedianRecord(records);
    return result;
  }

  SimulatedMachine Machine(int cores, double bytes_per_second) const {
    SimulatedMachine machine;
    machine.cores = cores;
    machine.socket_bytes_per_second = bytes_per_second;
    machine.remote_slowdown = options_.remote_slowdown;
    machine.barrier_growth = options_.barrier_growth;
    machine.barrier_seconds = report_.costs.barrier;
    machine.claim_seconds = report_.costs.claim;
    machine.wake_call_seconds = report_.costs.wake_call;
    machine.wake_seconds = report_.costs.wake;
    return machine;
  }

  // A socket of many cores saturates its memory; of few cores it cannot show what it delivers.
  double SocketBytesPerSecond() const {
    constexpr int kSaturating = 16;
    if (options_.socket_bytes_per_second > 0) return options_.socket_bytes_per_second;
    const int sockets = std::max(1, report_.machine.sockets);
    if (report_.threads.back() >= kSaturating * sockets) return report_.read_all / sockets;
    return kSaturating * report_.read_one;
  }

  // Weights that fit into a cache are read from it.
  double LimitOf(const ParallelRecord& record, double bytes_per_second) const {
    const bool fits =
        Summarise(record).weight_bytes < static_cast<double>(report_.machine.cache_bytes) / 2;
    return fits ? 0 : bytes_per_second;
  }

  void Simulate(CoresReport::Case& result) const {
    const double here = LimitOf(result.record, report_.read_all);
    const double socket = LimitOf(result.record, SocketBytesPerSecond());
    const auto seconds_on = [&](const SimulatedMachine& machine) {
      return bench::Simulate(result.record, machine).seconds();
    };
    const double one = seconds_on(Machine(1, 0));
    for (const int threads : report_.threads) {
      result.expected.push_back(one / seconds_on(Machine(threads, here)));
    }
    for (const int cores : options_.cores) {
      SimulatedMachine machine = Machine(cores, socket);
      AddPoint(result, machine, one);
      if (cores % 2 != 0) continue;
      machine.sockets = 2;
      for (const Placement placement :
           {Placement::kOneNode, Placement::kFirstTouch, Placement::kCopies}) {
        machine.placement = placement;
        AddPoint(result, machine, one);
      }
    }
  }

  static void AddPoint(CoresReport::Case& result, const SimulatedMachine& machine, double one) {
    const SimulatedStep step = bench::Simulate(result.record, machine);
    result.points.push_back({machine, step, one / step.seconds()});
  }

  const CoresBenchOptions& options_;
  const std::vector<Kind> kinds_;
  std::vector<std::unique_ptr<Stepper>> steppers_;
  CoresReport report_;
};

void CheckOptions(const CoresBenchOptions& options) {
  const bool is_sound =
      !options.cores.empty() && *std::min_element(options.cores.begin(), options.cores.end()) > 0;
  if (!is_sound) {
    throw Error(ErrorCode::kInvalidArgument, "--cores needs core counts of at least 1");
  }
}

}  // namespace

CoresReport MeasureCores(std::ostream& out, const CoresBenchOptions& options,
                         const std::function<double(int threads)>& read_rate) {
  CheckOptions(options);
  const int most_threads = options.threads > 0 ? options.threads : UsableCores();
  std::shared_ptr<const engine::Model> model;
  {
    ThreadPool pool(most_threads);
    engine::OpsContext ops(engine::Kernels(), pool);
    const auto dir = ModelOrRandom(options.model, options.cache_dir, out);
    model = engine::Model::Load(engine::ModelDir::Open(dir),
                                {.block = options.block, .cache_dir = options.cache_dir}, ops);
  }
  return CoresBench(model, most_threads, options).Run(read_rate);
}

int RunCoresBench(std::ostream& out, const CoresBenchOptions& options) {
  const CoresReport report =
      MeasureCores(out, options, [](int threads) { return MeasureRoof(threads, 0.3).read_bytes; });
  Print(out, report);
  if (!options.json_file.empty()) engine::WriteFileAtomically(options.json_file, ToJson(report));
  return 0;
}

}  // namespace tandem::bench
