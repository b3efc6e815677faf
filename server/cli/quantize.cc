#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/embedded_models.h"
#include "engine/base/log.h"
#include "engine/base/thread_pool.h"
#include "engine/engine.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/ops_context.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tools/logit_distance.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/verbs.h"
#include "server/models/load_model.h"

namespace tandem::server {
namespace {

constexpr int64_t kMaxTextBytes = 64 << 20;

struct QuantizeFlags {
  std::string model{config::kDefaultModel};
  std::string dtype = "auto";
  std::string kv_dtype = "auto";
  std::string text_file;
  std::string report_file;
  int64_t window = 512;
  int threads = 0;
  std::string cache_size;
  std::string log_level = "info";
  ProgressFlags progress;
};

// Default text of the comparison: prose, a list, numbers, code and a dialogue.
constexpr std::string_view kText =
    "The harbour wakes before the town does. Long before the bakery opens its shutters, the first "
    "boats come in under grey light, and the gulls, who have learned the hours better than anyone, "
    "are already waiting on the wall. Marta counted the crates as her father lifted them onto the "
    "quay: four of mackerel, two of crab, and one that held nothing but a tangle of rope and a "
    "boot. \"We caught a sailor,\" he said, and she laughed, although he said it every week.\n\n"
    "Questions about the tide are older than writing. Water rises twice a day because the moon "
    "pulls the near side of the ocean more strongly than the earth beneath it, and the earth more "
    "strongly than the water on the far side. The sun does the same with less than half the "
    "strength. When the two pull along one line, at new and full moon, the difference between high "
    "and low water is largest; these are the spring tides, and they have nothing to do with the "
    "season.\n\n"
    "What to take along:\n"
    "1. A tide table for the right port, not for the next one.\n"
    "2. Boots, a lamp, and 20 metres of line.\n"
    "3. Somebody who has been there before.\n\n"
    "In 1953 a storm and a spring tide met in the North Sea. The water stood 5.6 metres above the "
    "usual level in places; 1,836 people died in the Netherlands and 307 in England. The barriers "
    "that were built afterwards took until 1997, and cost about 5 billion dollars. An engineer who "
    "worked on them was asked what had been hardest. The concrete, she answered, was easy. It was "
    "to agree on what should count as a rare event.\n\n"
    "def next_high_tide(last, now):\n"
    "    \"\"\"The first high tide after `now`, given an earlier one; hours.\"\"\"\n"
    "    period = 12.42\n"
    "    n = int((now - last) // period) + 1\n"
    "    return last + n * period\n\n"
    "User: Can I walk to the island and back this afternoon?\n"
    "Assistant: Low water is at 14:10 today. The path is dry for about an hour and a half before "
    "and after that, so you should set out no earlier than 12:40 and be back by 15:40. The walk "
    "takes half an hour each way. Ask at the harbour office first: a strong wind from the west "
    "brings the water back sooner than the table says.\n";

engine::LoadedModel Open(const engine::ModelDir& dir, const QuantizeFlags& flags,
                         const std::string& dtype) {
  ModelFlags options;
  options.dtype = dtype;
  options.threads = flags.threads;
  options.cache_size = flags.cache_size;
  options.max_model_len = flags.window;
  return engine::OpenModel(dir, ToEngineOptions(options), "");
}

constexpr int64_t kTokensWithoutText = 512;

std::vector<TokenId> TextTokens(const engine::LoadedModel& model, const QuantizeFlags& flags) {
  if (!model.tokenizer) {
    if (flags.text_file.empty()) {
      return engine::SpreadTokens(model.vocab_size, kTokensWithoutText);
    }
    throw Error(ErrorCode::kInvalidArgument,
                "the model has no tokenizer, so it cannot read --text: leave --text out to use "
                "random token ids");
  }
  const std::string text = flags.text_file.empty()
                               ? std::string(kText)
                               : engine::ReadWholeFile(flags.text_file, kMaxTextBytes);
  std::vector<TokenId> ids;
  if (model.add_bos && model.bos) ids.push_back(*model.bos);
  const std::vector<TokenId> text_ids =
      model.tokenizer->Encode(text, engine::SpecialTokens::kPlainText);
  ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  return ids;
}

int Quantize(const QuantizeFlags& flags) {
  if (flags.dtype == "auto" && flags.kv_dtype == "auto") {
    throw Error(ErrorCode::kInvalidArgument,
                "give --dtype int8 or int4, --kv-dtype int8, or both: there is nothing to compare");
  }
  ConfigureLog(flags.log_level, LogFormat::kText);
  std::optional<ShownProgress> shown(flags.progress);
  const engine::ModelDir dir = OpenModelArgument(ParseModelArgument(flags.model)).files;
  const engine::LoadedModel reference = Open(dir, flags, "auto");
  const engine::LoadedModel rounded = Open(dir, flags, flags.dtype);

  ThreadPool pool(flags.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  const int64_t window = std::min(flags.window, reference.max_model_len);
  const engine::LogitDistance distance = engine::MeasureLogitDistance(
      reference.model, rounded.model, TextTokens(reference, flags), window, ops,
      flags.kv_dtype == "int8" ? engine::KvFormat::kInt8 : engine::KvFormat::kCompute);

  shown.reset();

  nlohmann::ordered_json report = {
      {"model", flags.model},
      {"reference_dtype", reference.weights_dtype},
      {"dtype", rounded.weights_dtype},
      {"kv_dtype", flags.kv_dtype == "int8" ? "int8" : rounded.kv_dtype},
      {"reference_bytes", reference.weight_bytes},
      {"bytes", rounded.weight_bytes},
      {"positions", distance.n_positions},
      {"mean_kl", distance.mean_kl},
      {"max_kl", distance.max_kl},
      {"same_first_choice", distance.same_first_choice},
      {"text", !flags.text_file.empty() ? flags.text_file
               : reference.tokenizer    ? "built in"
                                        : "random ids"},
      {"packed_file", rounded.model->packed_path().string()}};
  // The perplexity of random ids says nothing: every model predicts them badly.
  if (reference.tokenizer || !flags.text_file.empty()) {
    report["reference_perplexity"] = distance.reference_perplexity;
    report["perplexity"] = distance.perplexity;
    report["perplexity_ratio"] = distance.perplexity / distance.reference_perplexity;
  }
  const std::string text = report.dump(2) + "\n";
  std::fputs(text.c_str(), stdout);
  if (!flags.report_file.empty()) engine::WriteFileAtomically(flags.report_file, text);
  return 0;
}

}  // namespace

void AddQuantize(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<QuantizeFlags>();
  command
      .add_option("--model,-m", flags->model,
                  "model directory, GGUF or llama2.c file, embedded name, or "
                  "ORG/NAME[@REVISION][:FILE.gguf or :TAG] at the hub, s3:// or gs:// URL")
      ->capture_default_str();
  command
      .add_option("--dtype", flags->dtype,
                  "int8 or int4: blocks of 32 weights with one scale each. The packed-weight cache "
                  "keeps the result for --dtype of the same name; auto leaves the weights as they "
                  "are")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "int8", "int4"}));
  command
      .add_option("--kv-dtype", flags->kv_dtype,
                  "also compare with keys and values in this type: auto (the compute type) or int8")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "int8"}));
  command.add_option(
      "--text", flags->text_file,
      "text file on which the quantised model is compared (default: a short built-in text)");
  command.add_option("--window", flags->window, "tokens per context window")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20))
      ->capture_default_str();
  command.add_option("--report", flags->report_file, "file to write the report to, as JSON");
  command.add_option("--threads", flags->threads, "compute threads (0: one per physical core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.add_option("--cache-size", flags->cache_size,
                     "most bytes of the packed-weight cache, such as 64G");
  command.add_option("--log-level", flags->log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  command.callback([flags, &exit_code] { exit_code = Quantize(*flags); });
}

}  // namespace tandem::server
