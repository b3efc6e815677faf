#include "bench/constrain_bench.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>
#include <variant>
#include <vector>

#include "bench/make_model.h"
#include "bench/measure/paired.h"
#include "engine/base/attempt.h"
#include "engine/base/thread_group.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// A directory that its owner removes.
class Scratch {
 public:
  Scratch()
      : path_(fs::temp_directory_path() / ("tandem-bench-constrain-" + std::to_string(getpid()))) {}
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

// Strings, numbers, choices, lists and objects in turn, more of them than any run has tokens for.
Json EndlessSchema() {
  return Json::parse(R"({
    "type": "array", "minItems": 5000, "maxItems": 10000, "items": {
      "type": "object", "additionalProperties": false,
      "required": ["name", "kind", "size", "tags", "place"],
      "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["first", "second", "third"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 9999},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        "place": {"type": "object", "additionalProperties": false, "required": ["x", "y"],
                  "properties": {"x": {"type": "number"}, "y": {"type": ["number", "null"]}}}}}})");
}

// A schema of about 10 KB that differs from every other by its names.
Json NewSchema(int64_t number) {
  Json schema = {{"type", "object"}, {"additionalProperties", false}};
  for (int i = 0; schema.dump().size() < 10'000; ++i) {
    const std::string name = "field_" + std::to_string(number) + "_" + std::to_string(i);
    schema["properties"][name] = Json::parse(R"({
      "type": "object", "additionalProperties": false, "required": ["id", "label"],
      "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4,8}$"},
        "label": {"type": "string", "minLength": 1, "maxLength": 60},
        "state": {"enum": ["open", "closed", "waiting", "unknown"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 100000},
        "when": {"type": "string", "format": "date-time"},
        "values": {"type": "array", "items": {"type": "number"}, "maxItems": 20}}})");
    schema["required"].push_back(name);
  }
  return schema;
}

double ProcessCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Run {
  double tokens_per_second = 0;    // of all streams together, after their first tokens
  double first_token_seconds = 0;  // of the first stream
  std::vector<double> gaps;        // seconds between tokens of one stream
};

// The events of one request.
struct DecodeStream {
  std::vector<Clock::time_point> arrivals;  // of texts
  engine::RequestFinished finished;
  int64_t tokens = 0;
  std::promise<void> ended;

  void Take(engine::GenerationEvent&& event) {
    if (std::holds_alternative<engine::TextDelta>(event)) arrivals.push_back(Clock::now());
    if (const auto* choice = std::get_if<engine::ChoiceFinished>(&event)) {
      tokens = choice->usage.completion_tokens;
    }
    if (auto* end = std::get_if<engine::RequestFinished>(&event)) {
      finished = std::move(*end);
      ended.set_value();
    }
  }
};

class ConstrainBench {
 public:
  ConstrainBench(const engine::ModelDir& dir, const ConstrainBenchOptions& options)
      : options_(options), loaded_(engine::OpenModel(dir, Options(options), "")) {
    engine_ = std::make_unique<engine::Engine>(loaded_, Options(options));
    grammar_ = Compile(EndlessSchema());
  }

  const engine::LoadedModel& loaded() const { return loaded_; }

  std::shared_ptr<const engine::Grammar> Compile(const Json& schema) const {
    return loaded_.grammars->Compile(engine::SchemaGrammar(schema, "schema"));
  }

  // Runs requests together. Without grammar they generate freely.
  Run Generate(int64_t n_streams, int64_t tokens, bool is_constrained) {
    const Clock::time_point from = Clock::now();
    const auto grammar = is_constrained ? Compile(EndlessSchema()) : nullptr;
    std::vector<std::shared_ptr<DecodeStream>> streams;
    std::vector<engine::GenerationRequest> requests;
    std::vector<engine::EventSink> sinks;
    for (int64_t i = 0; i < n_streams; ++i) {
      engine::GenerationRequest request;
      for (int64_t k = 0; k < 4; ++k) {
        request.prompt.push_back(static_cast<TokenId>((7 * i + 31 * (k + ++n_prompts_)) % 250 + 1));
      }
      request.sampling.temperature = 1;
      request.sampling.seed = static_cast<uint64_t>(i + 1);
      request.stop.max_new_tokens = tokens;
      request.stop.ignore_end_tokens = true;
      request.grammar = grammar;
      request.continues_text = is_constrained;
      engine_->Check(request);
      requests.push_back(std::move(request));
      streams.push_back(std::make_shared<DecodeStream>());
      sinks.emplace_back([stream = streams.back()](RequestId, engine::GenerationEvent event) {
        stream->Take(std::move(event));
      });
    }
    engine_->SubmitAll(std::move(requests), std::move(sinks));
    Run run;
    for (const std::shared_ptr<DecodeStream>& stream : streams) {
      stream->ended.get_future().wait();
      const engine::RequestFinished& end = stream->finished;
      if (end.outcome != engine::RequestFinished::Outcome::kCompleted || stream->tokens != tokens) {
        throw Error(ErrorCode::kInternal, "a request ended early: " + end.message);
      }
      if (tokens > 1) {
        run.tokens_per_second += static_cast<double>(tokens - 1) / end.timings.decode_s;
      }
      for (size_t i = 1; i < stream->arrivals.size(); ++i) {
        run.gaps.push_back(Seconds(stream->arrivals[i] - stream->arrivals[i - 1]));
      }
    }
    if (!streams.front()->arrivals.empty()) {
      run.first_token_seconds = Seconds(streams.front()->arrivals.front() - from);
    }
    return run;
  }

  // A run of free streams. With `compiles`, one new schema a second compiles meanwhile.
  Run GenerateBeside(bool compiles) {
    std::atomic<bool> is_over{false};
    ThreadGroup others;
    if (compiles) {
      others.Add([&] {
        while (!is_over) {
          const Clock::time_point next = Clock::now() + std::chrono::seconds(1);
          Compile(NewSchema(++n_schemas_));
          while (!is_over && Clock::now() < next) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }
      });
    }
    Run run = Generate(options_.streams, options_.tokens, false);
    is_over = true;
    others.Wait();
    return run;
  }

  double CompileSeconds() {
    const Json schema = NewSchema(++n_schemas_);
    const Clock::time_point from = Clock::now();
    Compile(schema);
    return Seconds(Clock::now() - from);
  }

 private:
  static engine::EngineOptions Options(const ConstrainBenchOptions& options) {
    engine::EngineOptions out;
    out.threads = options.threads;
    out.kv_cache_bytes = int64_t{1} << 30;
    out.prefix_cache = false;
    return out;
  }

  const ConstrainBenchOptions& options_;
  engine::LoadedModel loaded_;
  std::unique_ptr<engine::Engine> engine_;
  std::shared_ptr<const engine::Grammar> grammar_;  // keeps the schema cached
  int64_t n_prompts_ = 0;
  std::atomic<int64_t> n_schemas_{0};
};

// Figures of the pairs, and their median.
class Pairs {
 public:
  void Add(double figure) { figures_.push_back(figure); }
  // "97.1 % (96.0 to 98.2 %)"
  std::string Text(const char* format, const char* unit) const {
    const auto [least, most] = std::minmax_element(figures_.begin(), figures_.end());
    char parts[3][32];
    std::snprintf(parts[0], sizeof parts[0], format, Median(figures_));
    std::snprintf(parts[1], sizeof parts[1], format, *least);
    std::snprintf(parts[2], sizeof parts[2], format, *most);
    return std::string(parts[0]) + unit + " (pairs " + parts[1] + " to " + parts[2] + unit + ")";
  }

 private:
  std::vector<double> figures_;
};

double Percentile99(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

void Measure(std::ostream& out, ConstrainBench& bench, const ConstrainBenchOptions& options) {
  Pairs decode, processor, added, compile, beside;
  double free_speed = 0, free_first = 0, free_p99 = 0;
  bench.Generate(options.streams, 16, true);  // warms up
  for (int round = 0; round < options.rounds; ++round) {
    // Free, held, held, free: a machine that slows down steadily favours neither side.
    double speeds[2] = {}, cpu[2] = {};  // free, held
    for (const bool is_held : {false, true, true, false}) {
      const double cpu_before = ProcessCpuSeconds();
      speeds[is_held] += bench.Generate(options.streams, options.tokens, is_held).tokens_per_second;
      cpu[is_held] += ProcessCpuSeconds() - cpu_before;
    }
    decode.Add(100 * speeds[1] / speeds[0]);
    processor.Add(100 * cpu[1] / cpu[0]);
    free_speed = speeds[0] / 2;

    std::vector<double> differences;
    for (int i = 0; i < 10; ++i) {
      free_first = bench.Generate(1, 1, false).first_token_seconds;
      differences.push_back(bench.Generate(1, 1, true).first_token_seconds - free_first);
    }
    added.Add(1e3 * Median(differences));
    compile.Add(1e3 * bench.CompileSeconds());

    free_p99 = Percentile99(bench.GenerateBeside(false).gaps);
    beside.Add(Percentile99(bench.GenerateBeside(true).gaps) / free_p99);
  }
  char line[200];
  std::snprintf(
      line, sizeof line, "decode of %lld streams under a schema: %s of free (%.0f tokens/s)\n",
      static_cast<long long>(options.streams), decode.Text("%.1f", " %").c_str(), free_speed);
  out << line << "processor time of these: " << processor.Text("%.1f", " %") << " of free\n";
  std::snprintf(line, sizeof line, "first token under a cached schema: + %s (free: %.2f ms)\n",
                added.Text("%.2f", " ms").c_str(), 1e3 * free_first);
  out << line;
  out << "a new schema of 10 KB compiles in " << compile.Text("%.1f", " ms") << "\n";
  std::snprintf(line, sizeof line,
                "p99 between tokens beside one new schema a second: %s without (%.1f ms)\n",
                beside.Text("%.2f", " x").c_str(), 1e3 * free_p99);
  out << line;
}

engine::ModelConfig ConfigOf(const ConstrainBenchOptions& options, int64_t vocab_size) {
  const auto& shapes = ModelShapes();
  const auto small = std::find_if(shapes.begin(), shapes.end(), [](const ModelShape& shape) {
    return std::string_view(shape.name) == "llama-15m";
  });
  engine::ModelConfig config = small->config();
  config.vocab_size = vocab_size;
  config.n_layers = options.layers;
  config.hidden_dim = options.width;
  config.ffn_dim = options.width * 8 / 3;
  config.attention.n_heads = config.attention.n_kv_heads = options.width / 48;
  return config;
}

}  // namespace

int RunConstrainBench(std::ostream& out, const ConstrainBenchOptions& options) {
  engine::RequireLlguidance();
  std::string tokenizer = options.tokenizer_json;
  int64_t vocab_size = options.vocab_size;
  if (tokenizer.empty()) {
    tokenizer = SyllableTokenizerJson(vocab_size);
  } else {
    const auto files = engine::LoadTokenizer(
        "--tokenizer",
        [&](std::string_view name) {
          return name == "tokenizer.json" ? std::optional(tokenizer) : std::nullopt;
        },
        [](std::string_view name) { return std::string(name); });
    vocab_size = files->tokenizer->vocab_size();
  }
  const Scratch scratch;
  const engine::ModelConfig config = ConfigOf(options, vocab_size);
  MakeModel(config, tokenizer, scratch.path());
  ConstrainBench bench(engine::ModelDir::Open(scratch.path()), options);
  char line[200];
  std::snprintf(
      line, sizeof line, "vocabulary %lld, %lld layers of width %lld, %s; medians of %d pairs\n",
      static_cast<long long>(vocab_size), static_cast<long long>(options.layers),
      static_cast<long long>(options.width), bench.loaded().weights_dtype.c_str(), options.rounds);
  out << line << std::flush;
  Measure(out, bench, options);
  return 0;
}

}  // namespace tandem::bench
