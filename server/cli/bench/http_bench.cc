#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "bench/load/load_generator.h"
#include "server/cli/bench/bench_verbs.h"

namespace tandem::server {
namespace {

void AddSide(CLI::App& command, bench::LoadOptions::Side& side, bool is_peer) {
  const std::string prefix = is_peer ? "--peer-" : "--";
  const std::string whose = is_peer ? " of the peer" : "";
  command.add_option(prefix + "api-key", side.api_key, "bearer token" + whose);
  command.add_option(prefix + "model", side.model,
                     "model name" + whose + " (default: the first of /v1/models)");
  command
      .add_option(is_peer ? "--peer-pid" : "--server-pid", side.pid,
                  "process id" + whose + ", for its CPU time and memory")
      ->check(CLI::Range(1, 1 << 22));
}

// LoadOptions, and the options that are still text.
struct LoadFlags {
  bench::LoadOptions options;
  std::string endpoint = "chat";
  std::string arrival = "poisson";
  std::string prompt_kind;
  std::string prompt_tokens = "128";
  std::string output_tokens = "64";
  std::string token_ids = "300-2000";
};

}  // namespace

void AddHttpBench(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<LoadFlags>();
  bench::LoadOptions& options = flags->options;
  bench::PromptOptions& prompts = options.prompts;
  command.add_option("--url", options.server.url, "server, such as http://127.0.0.1:8080")
      ->required();
  AddSide(command, options.server, false);
  command.add_option("--peer", options.peer.url,
                     "second server; runs alternate between the two and ratios are printed");
  AddSide(command, options.peer, true);
  command.add_option("--pairs", options.pairs, "runs per server, with --peer")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();

  command.add_option("--endpoint", flags->endpoint, "chat or completions")
      ->check(CLI::IsMember({"chat", "completions"}))
      ->capture_default_str();
  command.add_option("--streams", options.streams, "closed loop: requests in flight")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--rate", options.rate, "open loop: requests per second")
      ->check(CLI::PositiveNumber)
      ->excludes("--streams");
  command.add_option("--arrival", flags->arrival, "open loop: poisson or constant gaps")
      ->check(CLI::IsMember({"poisson", "constant"}))
      ->capture_default_str();
  command
      .add_option("--requests", options.requests,
                  "total requests (default: 4 per stream, unless --duration is given)")
      ->check(CLI::Range(1, 100000000));
  command.add_option("--duration", options.duration_s, "seconds during which requests start")
      ->check(CLI::PositiveNumber);
  command.add_option("--warmup", options.warmup, "unmeasured requests before each run")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command.add_option("--timeout", options.request_timeout_s, "seconds a request may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("!--new-connections", options.keep_alive,
                   "open a new connection per request instead of reusing them");

  command
      .add_option("--prompt-kind", flags->prompt_kind,
                  "prompt type: ids or text (default: ids for completions, text for chat)")
      ->check(CLI::IsMember({"ids", "text"}));
  command
      .add_option("--prompt-tokens", flags->prompt_tokens,
                  "tokens per prompt, or a range such as 16-128")
      ->capture_default_str();
  command.add_option("--output-tokens", flags->output_tokens, "tokens per answer, or a range")
      ->capture_default_str();
  command
      .add_option("--shared-prefix", prompts.shared_prefix_tokens,
                  "tokens of a prefix that all prompts share")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  command
      .add_option("--distinct-prompts", prompts.distinct_prompts,
                  "distinct prompts that the requests reuse in turn (0: each request has its own)")
      ->check(CLI::Range(0, 100000000))
      ->capture_default_str();
  command.add_option("--token-ids", flags->token_ids, "range of token ids for prompts of ids")
      ->capture_default_str();
  command.add_option("--seed", prompts.seed, "seed of prompts, lengths and arrivals")
      ->capture_default_str();
  command.add_option("--temperature", prompts.temperature, "sampling temperature")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_flag("--ignore-eos,!--heed-eos", prompts.ignore_eos,
                   "decode answers to their full length (default), or stop where the model stops");
  command.add_flag("--stream,!--no-stream", prompts.stream,
                   "request streamed answers (default) or plain ones");
  command.add_option("--extra", prompts.extra_json,
                     "JSON object; its members are added to each request");
  command
      .add_option("--abort", prompts.abort_fraction,
                  "fraction of clients that disconnect in the middle of a stream")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--probe", options.probes,
                  "path, such as /health, or URL of another port, to request beside the load on "
                  "new connections; repeatable")
      ->allow_extra_args(false);
  command
      .add_option("--probe-interval", options.probe_interval_s, "seconds between these requests")
      ->check(CLI::Range(0.0001, 60.0))
      ->capture_default_str();
  command.add_option("--json", options.json_file, "file to write all figures to, as JSON");

  command.callback([flags, &exit_code] {
    bench::LoadOptions& o = flags->options;
    using Prompts = bench::PromptOptions;
    o.prompts.endpoint =
        flags->endpoint == "chat" ? Prompts::Endpoint::kChat : Prompts::Endpoint::kCompletions;
    if (flags->prompt_kind.empty()) {
      flags->prompt_kind = flags->endpoint == "chat" ? "text" : "ids";
    }
    o.prompts.kind = flags->prompt_kind == "ids" ? Prompts::Kind::kIds : Prompts::Kind::kText;
    o.arrival = flags->arrival == "poisson" ? bench::ArrivalOptions::Process::kPoisson
                                            : bench::ArrivalOptions::Process::kConstant;
    o.prompts.prompt_tokens = bench::ParseIntRange(flags->prompt_tokens, "--prompt-tokens");
    o.prompts.output_tokens = bench::ParseIntRange(flags->output_tokens, "--output-tokens");
    o.prompts.token_ids = bench::ParseIntRange(flags->token_ids, "--token-ids");
    exit_code = bench::RunLoadBench(std::cout, o);
  });
}

}  // namespace tandem::server
