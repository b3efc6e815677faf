#include "bench/context_bench.h"

#include <future>
#include <memory>
#include <ostream>
#include <utility>
#include <variant>

#include "bench/gemm_bench.h"
#include "bench/measure/paired.h"
#include "bench/measure/print_formatted.h"
#include "engine/base/error.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/model/model.h"

namespace tandem::bench {
namespace {

struct StreamRun {
  double prefill_seconds = 0;
  double token_seconds = 0;  // of a token after the first
  std::vector<TokenId> tokens;
  int64_t accepted = 0;
  int64_t rejected = 0;
};

// Waits for the end of one request; the sink runs on the engine's thread.
class StreamAnswer {
 public:
  void Take(engine::GenerationEvent&& event) {
    if (const auto* delta = std::get_if<engine::TextDelta>(&event)) {
      run_.tokens.insert(run_.tokens.end(), delta->token_ids.begin(), delta->token_ids.end());
    }
    if (const auto* choice = std::get_if<engine::ChoiceFinished>(&event)) {
      run_.accepted = choice->usage.accepted_draft_tokens;
      run_.rejected = choice->usage.rejected_draft_tokens;
    }
    if (const auto* end = std::get_if<engine::RequestFinished>(&event)) {
      end_ = *end;
      ended_.set_value();
    }
  }
  StreamRun Wait() {
    ended_.get_future().wait();
    if (run_.tokens.size() < 2) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "the model decoded fewer than two tokens: " + end_.message);
    }
    run_.prefill_seconds = end_.timings.prefill_s;
    run_.token_seconds = end_.timings.decode_s / static_cast<double>(run_.tokens.size() - 1);
    return run_;
  }

 private:
  StreamRun run_;
  engine::RequestFinished end_;
  std::promise<void> ended_;
};

// Greedy, after a prompt of `depth` tokens that repeat every `period` tokens.
engine::GenerationRequest RepeatingRequest(const engine::LoadedModel& model, int64_t depth,
                                           int64_t period, int64_t tokens) {
  engine::GenerationRequest request;
  for (int64_t i = 0; i < depth; ++i) {
    const int64_t at = i % period;
    request.prompt.push_back(static_cast<TokenId>((at * 7919 + at / 17) % (model.vocab_size - 3)) +
                             3);
  }
  request.stop.max_new_tokens = tokens;
  request.stop.ignore_end_tokens = true;
  request.sampling.temperature = 0;
  return request;
}

StreamRun RunStream(engine::Engine& engine, const engine::GenerationRequest& request) {
  auto answer = std::make_shared<StreamAnswer>();
  engine.Submit(request, [answer](RequestId, engine::GenerationEvent event) {
    answer->Take(std::move(event));
  });
  return answer->Wait();
}

// The medians of several runs; tokens and counts are those of the last one.
StreamRun MedianOf(engine::Engine& engine, const engine::GenerationRequest& request, int rounds) {
  std::vector<double> prefill, token;
  StreamRun run;
  for (int i = 0; i < rounds; ++i) {
    run = RunStream(engine, request);
    prefill.push_back(run.prefill_seconds);
    token.push_back(run.token_seconds);
  }
  run.prefill_seconds = Median(prefill);
  run.token_seconds = Median(token);
  return run;
}

void ReportDepths(std::ostream& out, const engine::LoadedModel& model,
                  const ContextBenchOptions& options) {
  engine::EngineOptions plain = options.engine;
  plain.prefix_cache = false;
  engine::Engine engine(model, plain);
  const double kv_bytes =
      static_cast<double>(
          engine::ModelRunner::KvShape(*model.model, 1, plain.kv_format).block_bytes()) /
      static_cast<double>(engine::kTokensPerBlock);
  const double read_bytes = MeasureRoof(plain.threads, 0.3).read_bytes;
  StreamRun first;
  for (const int64_t depth : options.depths) {
    const StreamRun run =
        MedianOf(engine, RepeatingRequest(model, depth, depth, options.tokens), options.rounds);
    if (depth == options.depths.front()) first = run;
    const double rate = static_cast<double>(depth) / run.prefill_seconds;
    const double first_rate = static_cast<double>(options.depths.front()) / first.prefill_seconds;
    PrintFormatted(out, "%6lld tokens: prefill %.1f tokens/s = %.2f x the first, decode %.3f ms",
                   static_cast<long long>(depth), rate, rate / first_rate, 1e3 * run.token_seconds);
    if (depth != options.depths.front()) {
      const double more = static_cast<double>(depth - options.depths.front()) * kv_bytes;
      PrintFormatted(out, ", %.3f ms more = %.2f x its bytes",
                     1e3 * (run.token_seconds - first.token_seconds),
                     (run.token_seconds - first.token_seconds) / (more / read_bytes));
    }
    out << "\n";
  }
}

void ReportGuesses(std::ostream& out, engine::LoadedModel model,
                   const ContextBenchOptions& options) {
  constexpr int64_t kPrompt = 256;
  const int64_t tokens = 2 * options.tokens;
  engine::GenerationRequest request = RepeatingRequest(model, kPrompt, 64, tokens);
  StreamRun plain;
  {
    engine::Engine engine(model, options.engine);
    plain = MedianOf(engine, request, options.rounds);
  }
  PrintFormatted(out, "one stream: %.1f tokens/s without guesses\n", 1 / plain.token_seconds);
  const auto compare = [&](const char* what, const engine::EngineOptions& with) {
    engine::Engine engine(model, with);
    const StreamRun run = MedianOf(engine, request, options.rounds);
    PrintFormatted(out, "%s: %.2f x decode, %lld guesses right, %lld wrong%s\n", what,
                   plain.token_seconds / run.token_seconds, static_cast<long long>(run.accepted),
                   static_cast<long long>(run.rejected),
                   run.tokens == plain.tokens ? "" : " (THE TOKENS DIFFER)");
    return run.tokens == plain.tokens;
  };
  engine::EngineOptions with = options.engine;
  with.draft_rows = engine::kDraftRows;
  bool is_same = compare("look-up", with);
  request.prediction = plain.tokens;
  is_same = compare("copying a prediction", with) && is_same;
  request.prediction.clear();
  if (!options.draft_model.empty()) {
    with.looks_up = false;
    const engine::LoadedModel draft =
        engine::OpenModel(engine::ModelDir::Open(options.draft_model.string()), options.engine, "");
    engine::AttachDraft(model, options.model.string(), draft, options.draft_model.string());
    is_same = compare("draft model", with) && is_same;
  }
  if (!is_same) throw Error(ErrorCode::kInternal, "guesses changed the answer");
}

}  // namespace

int RunContextBench(std::ostream& out, const ContextBenchOptions& options) {
  engine::EngineOptions engine_options = options.engine;
  engine_options.max_seqs = 1;
  ContextBenchOptions resolved = options;
  resolved.engine = engine_options;
  const engine::LoadedModel model =
      engine::OpenModel(engine::ModelDir::Open(options.model.string()), engine_options, "");
  PrintFormatted(out, "%lld parameters, %s, keys in %s; medians of %d rounds\n",
                 static_cast<long long>(model.parameters), model.weights_dtype.c_str(),
                 model.kv_dtype.c_str(), options.rounds);
  ReportDepths(out, model, resolved);
  ReportGuesses(out, model, resolved);
  return 0;
}

}  // namespace tandem::bench
