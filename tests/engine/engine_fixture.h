#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <utility>

#include "bench/models/random_model.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "tests/support/engine_client.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {

// Stops the engine thread inside the first event of a request until the test opens the gate.
// Everything that the test posts meanwhile arrives before the next step. (Real sinks must not
// block.)
class Gate {
 public:
  // The request's events, gated.
  std::shared_ptr<tests::PendingAnswer> Start(Engine& engine, GenerationRequest request) {
    auto pending = std::make_shared<tests::PendingAnswer>();
    pending->id = engine.Submit(std::move(request), [this, pending](RequestId, GenerationEvent e) {
      if (!std::exchange(entered_once_, true)) {
        entered_.count_down();
        open_.wait();
      }
      pending->Take(std::move(e));
    });
    entered_.wait();
    return pending;
  }
  void Open() { open_.count_down(); }

 private:
  bool entered_once_ = false;  // engine thread only
  std::latch entered_{1};
  std::latch open_{1};
};

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyLlamaConfig();
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, path());
    options_.threads = 1;
    options_.max_seqs = 4;
    options_.kv_cache_bytes = 8 << 20;
  }

  std::filesystem::path path() const { return dir_.path() / "model"; }
  LoadedModel Open() const { return OpenModel(ModelDir::Open(path()), options_, ""); }
  void WriteFile(const std::string& name, const std::string& text) const {
    std::ofstream(path() / name) << text;
  }

  // Greedy, 8 tokens, default options.
  static GenerationRequest Simple(int64_t prompt_len = 20, int64_t max_new_tokens = 8) {
    GenerationRequest request;
    for (int64_t i = 0; i < prompt_len; ++i) {
      request.prompt.push_back(static_cast<TokenId>('a' + i % 26));
    }
    request.sampling.temperature = 0;
    request.stop.max_new_tokens = max_new_tokens;
    request.stop.ignore_end_tokens = true;
    return request;
  }

  // Makes every draw return `token`.
  static void Force(GenerationRequest& request, TokenId token) {
    request.sampling.logit_bias = {{token, 100.0f}};
  }

  static ErrorCode SubmitError(Engine& engine, GenerationRequest request, std::string* reason) {
    try {
      engine.Submit(std::move(request), [](RequestId, GenerationEvent) {});
    } catch (const Error& error) {
      *reason = error.reason();
      return error.code();
    }
    ADD_FAILURE() << "accepted";
    return ErrorCode::kInternal;
  }

  tests::TemporaryDir dir_;
  EngineOptions options_;
};

}  // namespace tandem::engine
