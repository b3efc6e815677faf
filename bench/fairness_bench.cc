#include "bench/fairness_bench.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "bench/load/arrivals.h"
#include "bench/load/load_summary.h"
#include "bench/measure/paired.h"
#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration Seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// Ends of requests, as the engine reports them.
class Ends {
 public:
  engine::EventSink Sink(bool is_batch) {
    return [this, is_batch](RequestId, const engine::GenerationEvent& event) {
      const auto* end = std::get_if<engine::RequestFinished>(&event);
      if (end == nullptr) return;
      const std::lock_guard lock(mutex_);
      ++(is_batch ? n_batch_ : n_interactive_);
      if (end->outcome == engine::RequestFinished::Outcome::kFailed) fault_ = end->message;
      if (!is_batch) first_token_ms_.push_back(1000 * end->timings.time_to_first_s);
      changed_.notify_all();
    };
  }
  int64_t n_batch() {
    const std::lock_guard lock(mutex_);
    return n_batch_;
  }
  void WaitForBatch(int64_t seen, Clock::time_point at_latest) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, at_latest, [&] { return n_batch_ != seen; });
  }
  void WaitFor(int64_t interactive, int64_t batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_interactive_ >= interactive && n_batch_ >= batch; });
  }
  // Throws kInternal when a request failed.
  std::vector<double> TakeFirstTokens() {
    const std::lock_guard lock(mutex_);
    if (!fault_.empty()) throw Error(ErrorCode::kInternal, "a request failed: " + fault_);
    return std::move(first_token_ms_);
  }

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  int64_t n_interactive_ = 0;
  int64_t n_batch_ = 0;
  std::vector<double> first_token_ms_;
  std::string fault_;
};

struct OpenLoop {
  Distribution first_token_ms;
  double batch_tokens_per_s = 0;
};

class FairnessBench {
 public:
  explicit FairnessBench(const FairnessBenchOptions& options)
      : options_(options), engine_(Open(options), EngineOf(options)), random_(options.seed) {
    const int64_t needed = std::max({options.long_tokens + 1, options.batch_prompt_tokens * 2,
                                     options.short_tokens * 2 + options.output_tokens});
    if (needed > engine_.loaded().max_model_len) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the model's context of " + std::to_string(engine_.loaded().max_model_len) +
                      " tokens is shorter than the " + std::to_string(needed) +
                      " that this bench needs: take another model or shorter prompts");
    }
  }

  // Milliseconds to the first token of a short request; behind a long prompt, if asked.
  double ShortRequest(bool behind_long, int64_t n_new = 1) {
    Ends ends;
    RequestId of_long{};
    if (behind_long) {
      const int64_t steps = engine_.stats().steps_total;
      of_long = Submit(Request(options_.long_tokens, 1), ends, true);
      while (engine_.stats().steps_total == steps) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
    Submit(Request(options_.short_tokens, n_new), ends, false);
    ends.WaitFor(1, 0);
    if (behind_long) engine_.Cancel(of_long);
    ends.WaitFor(1, behind_long ? 1 : 0);
    return ends.TakeFirstTokens().front();
  }

  // Seconds of an interactive request alone.
  double SecondsAlone() {
    const auto from = Clock::now();
    ShortRequest(false, options_.output_tokens);
    return std::chrono::duration<double>(Clock::now() - from).count();
  }

  OpenLoop Run(bool with_batches, double rate, uint64_t seed) {
    const std::vector<double> arrivals =
        ArrivalTimes({.requests_per_s = rate, .requests = options_.requests, .seed = seed});
    std::mt19937_64 lengths(seed);
    std::uniform_int_distribution<int64_t> length(options_.short_tokens / 2,
                                                  options_.short_tokens * 2);
    Ends ends;
    std::vector<RequestId> batches;
    const auto refill = [&] {
      const int64_t seen = ends.n_batch();
      while (with_batches && static_cast<int64_t>(batches.size()) < seen + options_.batch_streams) {
        engine::GenerationRequest request =
            Request(options_.batch_prompt_tokens, options_.batch_prompt_tokens / 4);
        request.work_class = WorkClass::kBatch;
        batches.push_back(Submit(std::move(request), ends, true));
      }
      return seen;
    };
    refill();
    const auto begin = Clock::now();
    for (const double at : arrivals) {
      const Clock::time_point due = begin + Seconds(at);
      while (Clock::now() < due) {
        ends.WaitForBatch(refill(), due);
      }
      engine::GenerationRequest request = Request(length(lengths), options_.output_tokens);
      request.arrival = due;
      Submit(std::move(request), ends, false);
    }
    ends.WaitFor(options_.requests, 0);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const int64_t n_batch = ends.n_batch();
    for (const RequestId id : batches) engine_.Cancel(id);
    ends.WaitFor(options_.requests, static_cast<int64_t>(batches.size()));
    const auto tokens_each = static_cast<double>(options_.batch_prompt_tokens * 5 / 4);
    return {Distribute(ends.TakeFirstTokens()),
            static_cast<double>(n_batch) * tokens_each / seconds};
  }

 private:
  static engine::EngineOptions EngineOf(const FairnessBenchOptions& options) {
    engine::EngineOptions engine = options.engine;
    engine.prefix_cache = false;
    return engine;
  }
  static engine::LoadedModel Open(const FairnessBenchOptions& options) {
    return engine::OpenModel(engine::ModelDir::Open(options.model), EngineOf(options), "");
  }

  engine::GenerationRequest Request(int64_t prompt_tokens, int64_t n_new) {
    engine::GenerationRequest request;
    const auto last = static_cast<TokenId>(engine_.loaded().vocab_size - 1);
    std::uniform_int_distribution<TokenId> token(0, last);
    for (int64_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(token(random_));
    request.sampling.temperature = 0;
    request.stop.max_new_tokens = n_new;
    request.stop.ignore_end_tokens = true;
    return request;
  }
  RequestId Submit(engine::GenerationRequest request, Ends& ends, bool is_batch) {
    return engine_.Submit(std::move(request), ends.Sink(is_batch));
  }

  const FairnessBenchOptions& options_;
  engine::Engine engine_;
  std::mt19937_64 random_;
};

// "1.04 (0.98-1.11)": the median and the range.
std::string Spread(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  char text[96];
  std::snprintf(text, sizeof text, "%.2f (%.2f-%.2f)", Median(values), *least, *most);
  return text;
}

void MeasureBatches(std::ostream& out, FairnessBench& bench, const FairnessBenchOptions& options) {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) seconds.push_back(bench.SecondsAlone());
  const double rate = options.load / Median(seconds);
  char line[256];
  std::snprintf(line, sizeof line,
                "interactive requests beside %lld batch requests: %.1f/s of about %lld + %lld "
                "tokens, %lld in each run\n",
                static_cast<long long>(options.batch_streams), rate,
                static_cast<long long>(options.short_tokens),
                static_cast<long long>(options.output_tokens),
                static_cast<long long>(options.requests));
  out << line;
  std::vector<double> p50, p99;
  for (int pair = 0; pair < options.pairs; ++pair) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(pair);
    const OpenLoop without = bench.Run(false, rate, seed);
    const OpenLoop with = bench.Run(true, rate, seed);
    p50.push_back(with.first_token_ms.p50 / without.first_token_ms.p50);
    p99.push_back(with.first_token_ms.p99 / without.first_token_ms.p99);
    std::snprintf(line, sizeof line,
                  "  first token p50 %.1f / %.1f ms, p99 %.1f / %.1f ms; batches %.0f tokens/s\n",
                  with.first_token_ms.p50, without.first_token_ms.p50, with.first_token_ms.p99,
                  without.first_token_ms.p99, with.batch_tokens_per_s);
    out << line << std::flush;
  }
  out << "with / without batches: p50 " << Spread(p50) << ", p99 " << Spread(p99) << "\n";
}

void MeasureLong(std::ostream& out, FairnessBench& bench, const FairnessBenchOptions& options) {
  std::vector<double> ratios, behind, alone;
  for (int pair = 0; pair < 3 * options.pairs; ++pair) {
    alone.push_back(bench.ShortRequest(false));
    behind.push_back(bench.ShortRequest(true));
    ratios.push_back(behind.back() / alone.back());
  }
  char line[256];
  std::snprintf(line, sizeof line,
                "first token of %lld tokens behind a prompt of %lld / alone: %.1f / %.1f ms = ",
                static_cast<long long>(options.short_tokens),
                static_cast<long long>(options.long_tokens), Median(behind), Median(alone));
  out << line << Spread(ratios) << "\n" << std::flush;
}

}  // namespace

int RunFairnessBench(std::ostream& out, const FairnessBenchOptions& options) {
  FairnessBench bench(options);
  bench.ShortRequest(true);  // faults pages in
  MeasureLong(out, bench, options);
  MeasureBatches(out, bench, options);
  return 0;
}

}  // namespace tandem::bench
