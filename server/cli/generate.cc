#include "engine/generate.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "config/embedded_models.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/cli/job_child.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/verbs.h"
#include "server/handlers/prompt.h"
#include "server/models/load_model.h"

namespace tandem::server {
namespace {

struct GenerateFlags {
  std::string model{config::kDefaultModel};
  ModelFlags options;
  std::string prompt;
  std::string tokens;
  int64_t max_tokens = 128;
  double temperature = 0;
  double top_p = 1;
  int top_k = 0;
  uint64_t seed = 0;
  bool has_seed = false;
  bool print_ids = false;
  std::string log_level = "warn";
  std::string job_dir;
  ProgressFlags progress;
};

std::vector<TokenId> ParseTokens(const std::string& text, int64_t vocab_size) {
  std::vector<TokenId> out;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at < end) {
    TokenId id = -1;
    const auto [next, fault] = std::from_chars(at, end, id);
    if (fault != std::errc() || id < 0 || id >= vocab_size || (next != end && *next != ',')) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--tokens must be ids in [0, " + std::to_string(vocab_size - 1) +
                      "], separated by commas, got '" + text.substr(0, 60) + "'");
    }
    out.push_back(id);
    at = next == end ? end : next + 1;
  }
  return out;
}

// Calls `take` with each piece of the text, or of the list of ids.
void Generate(const GenerateFlags& flags, const std::function<void(std::string_view)>& take) {
  ConfigureLog(flags.log_level, LogFormat::kText);
  engine::EngineOptions options = ToEngineOptions(flags.options);
  options.max_seqs = 1;
  const auto model = LoadServedModel(OpenModelArgument(ParseModelArgument(flags.model)), options,
                                     ReadChatTemplate(flags.options));
  const engine::LoadedModel& loaded = model->loaded();

  engine::GenerationRequest request;
  request.prompt = flags.tokens.empty() ? EncodePlainPrompt(*model, flags.prompt, {})
                                        : ParseTokens(flags.tokens, loaded.vocab_size);
  CheckPromptLength(*model, request.prompt.size(), "prompt");
  request.sampling.temperature = static_cast<float>(flags.temperature);
  request.sampling.top_p = static_cast<float>(flags.top_p);
  request.sampling.top_k = flags.top_k;
  request.sampling.seed = flags.has_seed ? flags.seed : std::random_device()();
  request.stop.max_new_tokens = std::min(
      flags.max_tokens, loaded.max_model_len - static_cast<int64_t>(request.prompt.size()));

  const bool print_ids = flags.print_ids || !loaded.tokenizer;
  bool is_first = true;
  engine::Generate(*model->engine, std::move(request), [&](const engine::TextDelta& delta) {
    if (!print_ids) {
      take(delta.text);
      return;
    }
    for (const TokenId id : delta.token_ids) {
      take((is_first ? "" : ",") + std::to_string(id));
      is_first = false;
    }
  });
}

int GenerateOnScreen(const GenerateFlags& flags) {
  const ShownProgress shown(flags.progress);
  Generate(flags, [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  std::printf("\n");
  return 0;
}

// Runs as a step of a pipeline; writes the text to DIR/text.txt.
int GenerateJob(GenerateFlags flags) {
  const std::filesystem::path dir = flags.job_dir;
  return EndInResult(dir, "load the model with --dtype int8 or int4", [&] {
    const std::string file = (dir / "spec.json").string();
    const auto spec = engine::ParseUntrustedJson(engine::ReadWholeFile(file, 1 << 20), file);
    flags.model = engine::JsonStringOr(spec, "model", flags.model, file);
    flags.prompt = engine::JsonStringOr(spec, "prompt", "", file);
    flags.options.dtype = engine::JsonStringOr(spec, "dtype", "auto", file);
    flags.max_tokens = engine::JsonIntOr(spec, "max_tokens", 64, 1, int64_t{1} << 30, file);
    flags.temperature = engine::JsonNumberOr(spec, "temperature", 0, 0, 2, file);
    flags.top_p = engine::JsonNumberOr(spec, "top_p", 1, 0, 1, file);
    flags.top_k = static_cast<int>(engine::JsonIntOr(spec, "top_k", 0, 0, 1 << 30, file));
    flags.seed =
        static_cast<uint64_t>(engine::JsonIntOr(spec, "seed", 0, 0, int64_t{1} << 53, file));
    flags.has_seed = true;
    LowerPriority(0);
    RemoveResult(dir);
    EventLog events(dir);
    std::string text;
    Generate(flags, [&](std::string_view piece) { text += piece; });
    engine::WriteFileAtomically(dir / "text.txt", text + "\n");
    const nlohmann::ordered_json shown = {{"prompt", flags.prompt}, {"text", text}};
    events.Write({"sample", 1, 1, 0,
                  shown.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)});
    WriteResult(dir, {{"status", "succeeded"}, {"model", flags.model}, {"text", text}});
    return 0;
  });
}

}  // namespace

void AddGenerate(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<GenerateFlags>();
  command
      .add_option("--model,-m", flags->model,
                  "model directory, GGUF or llama2.c file, embedded name, or "
                  "ORG/NAME[@REVISION][:FILE.gguf or :TAG] at the hub, s3:// or gs:// URL")
      ->capture_default_str();
  AddModelFlags(command, flags->options);
  auto* prompt = command.add_option("--prompt,-p", flags->prompt, "text to continue");
  auto* tokens = command.add_option("--tokens", flags->tokens, "token ids to continue: 1,2,3");
  prompt->excludes(tokens);
  command.add_option("--max-tokens", flags->max_tokens, "most tokens to generate")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  command.add_option("--temperature", flags->temperature, "sampling temperature (0: greedy)")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  command
      .add_option("--top-p", flags->top_p, "sample from the likeliest tokens of this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--top-k", flags->top_k, "sample from the K likeliest tokens (0: all)")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  auto* seed = command.add_option(
      "--seed", flags->seed, "random seed; the same seed gives the same text (default: random)");
  command.add_flag("--ids", flags->print_ids, "print token ids instead of text");
  command.add_option("--log-level", flags->log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  AddProgressFlags(command, flags->progress);
  command.add_option("--job", flags->job_dir,
                     "job directory: read spec.json there, write text.txt, events.jsonl and "
                     "result.json, run at the lowest priority");
  command.callback([flags, prompt, tokens, seed, &exit_code] {
    if (!flags->job_dir.empty()) {
      exit_code = GenerateJob(*flags);
      return;
    }
    if (prompt->count() == 0 && tokens->count() == 0) {
      throw Error(ErrorCode::kInvalidArgument, "give --prompt TEXT or --tokens 1,2,3");
    }
    flags->has_seed = seed->count() > 0;
    exit_code = GenerateOnScreen(*flags);
  });
}

}  // namespace tandem::server
