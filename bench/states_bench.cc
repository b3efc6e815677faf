#include "bench/states_bench.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/measure/paired.h"
#include "bench/measure/print_formatted.h"
#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"

namespace tandem::bench {
namespace {

// The result of one request.
struct Answer {
  std::vector<TokenId> tokens;
  int64_t cached_tokens = 0;
  engine::RequestTimings timings;
};

// Collects the answers of requests in flight. The engine thread calls the sinks.
class Answers {
 public:
  explicit Answers(size_t n) : answers_(n) {}

  engine::EventSink Sink(size_t at) {
    return [this, at](RequestId, const engine::GenerationEvent& event) {
      const std::lock_guard lock(mutex_);
      Answer& answer = answers_[at];
      if (const auto* text = std::get_if<engine::TextDelta>(&event)) {
        answer.tokens.insert(answer.tokens.end(), text->token_ids.begin(), text->token_ids.end());
      }
      if (const auto* choice = std::get_if<engine::ChoiceFinished>(&event)) {
        answer.cached_tokens = choice->usage.cached_tokens;
      }
      const auto* end = std::get_if<engine::RequestFinished>(&event);
      if (end == nullptr) return;
      if (end->outcome == engine::RequestFinished::Outcome::kFailed) fault_ = end->message;
      answer.timings = end->timings;
      ++n_ended_;
      changed_.notify_all();
    };
  }
  // Throws kInternal when a request failed.
  std::vector<Answer> Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_ended_ == answers_.size(); });
    if (!fault_.empty()) throw Error(ErrorCode::kInternal, "a request failed: " + fault_);
    return std::move(answers_);
  }

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<Answer> answers_;
  size_t n_ended_ = 0;
  std::string fault_;
};

struct Times {
  double prompt_s = 0;
  double decode_s = 0;
};

class StatesBench {
 public:
  explicit StatesBench(const StatesBenchOptions& options)
      : options_(options),
        loaded_(engine::OpenModel(engine::ModelDir::Open(options.model), EngineOf(true), "")),
        with_(loaded_, EngineOf(true)),
        without_(loaded_, EngineOf(false)),
        random_(options.seed) {
    const int64_t needed =
        std::max(options.prompt_tokens, options.shared_tokens + 2 * kTail) + options.output_tokens;
    if (needed > loaded_.max_model_len) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the model's context of " + std::to_string(loaded_.max_model_len) +
                      " tokens is shorter than the " + std::to_string(needed) +
                      " that this bench needs: take another model or shorter prompts");
    }
  }

  static constexpr int64_t kTail = 40;  // tokens of a prompt behind a common beginning

  std::vector<TokenId> Tokens(int64_t n) {
    std::uniform_int_distribution<TokenId> token(0, static_cast<TokenId>(loaded_.vocab_size - 1));
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < n; ++i) tokens.push_back(token(random_));
    return tokens;
  }

  // The longest prompt and decode times of `streams` requests together.
  Times Run(bool with_snapshots) {
    std::vector<std::vector<TokenId>> prompts;
    for (int64_t i = 0; i < options_.streams; ++i) {
      prompts.push_back(Tokens(options_.prompt_tokens));
    }
    Times times;
    for (const Answer& answer : Ask(with_snapshots ? with_ : without_, prompts)) {
      times.prompt_s = std::max(times.prompt_s, answer.timings.prefill_s);
      times.decode_s = std::max(times.decode_s, answer.timings.decode_s);
    }
    return times;
  }

  // `n_shared`: first tokens that the request names as shared, as the server does for a chat's
  // instructions.
  Answer AskOne(std::vector<TokenId> prompt, int64_t n_shared = 0) {
    return Ask(with_, {std::move(prompt)}, n_shared).front();
  }

  // Snapshots that the engine keeps.
  int64_t snapshots() const { return with_.stats().state_snapshots; }

  // Requests until snapshots have used every slot: the first use of its pages costs more.
  void FillSlots() {
    const int64_t n_slots = with_.stats().states_total - options_.streams;
    for (int64_t before = -1; snapshots() < n_slots && snapshots() > before;) {
      before = snapshots();
      Run(true);
    }
  }

 private:
  engine::EngineOptions EngineOf(bool with_snapshots) const {
    engine::EngineOptions engine = options_.engine;
    engine.prefix_cache = with_snapshots;
    return engine;
  }

  std::vector<Answer> Ask(engine::Engine& engine, std::vector<std::vector<TokenId>> prompts,
                          int64_t n_shared = 0) {
    Answers answers(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      engine::GenerationRequest request;
      request.prompt = std::move(prompts[i]);
      request.shared_tokens = n_shared;
      request.sampling.temperature = 0;
      request.stop.max_new_tokens = options_.output_tokens;
      request.stop.ignore_end_tokens = true;
      engine.Submit(std::move(request), answers.Sink(i));
    }
    return answers.Wait();
  }

  const StatesBenchOptions& options_;
  engine::LoadedModel loaded_;
  engine::Engine with_;
  engine::Engine without_;
  std::mt19937_64 random_;
};

void MeasureCost(std::ostream& out, StatesBench& bench, const StatesBenchOptions& options) {
  bench.FillSlots();
  bench.Run(false);  // faults pages in
  std::vector<double> prompt, decode;
  for (int pair = 0; pair < options.pairs; ++pair) {
    const bool first = pair % 2 == 0;
    const Times a = bench.Run(first), b = bench.Run(!first);
    const Times& with = first ? a : b;
    const Times& without = first ? b : a;
    const auto n = static_cast<double>(std::max<int64_t>(1, options.output_tokens - 1));
    prompt.push_back(with.prompt_s / without.prompt_s);
    decode.push_back(with.decode_s / without.decode_s);
    PrintFormatted(out, "  step %.3f / %.3f ms = %.4f\n", 1000 * with.decode_s / n,
                   1000 * without.decode_s / n, decode.back());
  }
  PrintFormatted(out, "with / without snapshots: decode %.4f, prompt %.4f (%.0f snapshots kept)\n",
                 Median(decode), Median(prompt), static_cast<double>(bench.snapshots()));
}

void MeasureReuse(std::ostream& out, StatesBench& bench, const StatesBenchOptions& options) {
  std::vector<TokenId> shared = bench.Tokens(options.shared_tokens);
  const auto with_tail = [&] {
    std::vector<TokenId> prompt = shared;
    const std::vector<TokenId> tail = bench.Tokens(StatesBench::kTail);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    return prompt;
  };
  const auto report = [&](const char* what, const Answer& answer, size_t common) {
    const auto cached = static_cast<double>(answer.cached_tokens);
    const auto n = static_cast<double>(common);
    out << what;
    PrintFormatted(out, ": %.0f of %.0f tokens, %.1f %%\n", cached, n, 100 * cached / n);
  };
  bench.AskOne(with_tail(), options.shared_tokens);
  report("the second chat with the same instructions",
         bench.AskOne(with_tail(), options.shared_tokens), shared.size());
  shared = bench.Tokens(options.shared_tokens);
  std::vector<TokenId> prompt = with_tail();
  const Answer first = bench.AskOne(prompt);
  report("the second plain prompt with a common beginning", bench.AskOne(with_tail()),
         shared.size());
  report("the third", bench.AskOne(with_tail()), shared.size());
  report("the first prompt again", bench.AskOne(prompt), prompt.size());
  prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
  const size_t turn = prompt.size();
  const std::vector<TokenId> next = bench.Tokens(StatesBench::kTail);
  prompt.insert(prompt.end(), next.begin(), next.end());
  report("the next turn of its chat", bench.AskOne(prompt), turn);
}

}  // namespace

int RunStatesBench(std::ostream& out, const StatesBenchOptions& options) {
  StatesBench bench(options);
  MeasureCost(out, bench, options);
  MeasureReuse(out, bench, options);
  return 0;
}

}  // namespace tandem::bench
