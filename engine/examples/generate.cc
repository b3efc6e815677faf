// Continues a text and prints it while the model generates: generate MODEL PROMPT [MAX_TOKENS]
// MODEL is a Hugging Face directory or a GGUF file.

#include "engine/generate.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "engine/base/log.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"

namespace engine = tandem::engine;

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL PROMPT [MAX_TOKENS]\n", argv[0]);
    return 2;
  }
  tandem::ConfigureLog("warn", tandem::LogFormat::kText);  // to standard error
  engine::EngineOptions options;
  options.max_seqs = 1;
  engine::Engine model(engine::OpenModel(engine::ModelDir::Open(argv[1]), options, ""), options);

  engine::GenerationRequest request;
  request.prompt = engine::EncodePrompt(model.loaded(), argv[2]);
  request.sampling.temperature = 0;  // the likeliest token at every step
  request.stop.max_new_tokens = argc > 3 ? std::atoi(argv[3]) : 64;
  const auto choices = engine::Generate(model, std::move(request), [](const auto& delta) {
    std::printf("%s", delta.text.c_str());
    std::fflush(stdout);
  });
  std::printf("\n%ld tokens\n", static_cast<long>(choices[0].usage.completion_tokens));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
