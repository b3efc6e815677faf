#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

// The include rules as data. Change a row in the commit that needs it, and give the reason there.
namespace tandem::tests {

// A folder with sources, and the folders or single files that it may include besides itself. The
// table has no cycle: every entry of a row is below the row's folder. tests may include everything.
struct FolderRule {
  std::string_view folder;
  std::vector<std::string_view> may_include;
};

inline const std::vector<FolderRule> kFolderRules = {
    {"engine/base", {}},
    {"engine/chat/jinja", {"engine/base"}},
    {"engine/io", {"engine/base"}},
    {"engine/sampling", {"engine/base"}},
    {"engine/tensor", {"engine/base"}},
    {"engine/tokenizer/files", {"engine/base"}},
    {"engine/tokenizer/text", {"engine/base"}},
    {"engine/chat", {"engine/base", "engine/chat/jinja", "engine/io"}},
    {"engine/chat/answers", {"engine/base", "engine/io", "engine/chat"}},
    {"engine/formats/safetensors", {"engine/base", "engine/io", "engine/tensor"}},
    {"engine/formats/stored", {"engine/base", "engine/tensor"}},
    {"engine/hub", {"engine/base", "engine/io"}},
    {"engine/kernels", {"engine/base", "engine/tensor"}},
    {"engine/kv", {"engine/base", "engine/io", "engine/tensor"}},
    {"engine/tokenizer/models", {"engine/base", "engine/tokenizer/text"}},
    {"engine/tokenizer/pretokenizers", {"engine/tokenizer/text"}},
    {"engine/adapter", {"engine/base", "engine/io", "engine/formats/safetensors"}},
    {"engine/api", {"engine/base", "engine/sampling", "engine/tensor", "engine/kernels"}},
    {"engine/formats/llama2c", {"engine/base", "engine/io", "engine/formats/stored"}},
    {"engine/kernels/avx2", {"engine/kernels"}},
    {"engine/kernels/avx512", {"engine/kernels"}},
    {"engine/kernels/reference", {"engine/kernels"}},
    {"engine/ops", {"engine/base", "engine/tensor", "engine/kernels"}},
    {"engine/model/families", {"engine/base", "engine/io", "engine/ops"}},
    // Reads files by the architectures of the families.
    {"engine/formats/gguf", {"engine/base", "engine/formats/stored", "engine/model/families"}},
    {"engine/sched", {"engine/base", "engine/kv"}},
    {"engine/tokenizer/normalizers",
     {"engine/base", "engine/tokenizer/files", "engine/tokenizer/text", "engine/tokenizer/models"}},
    {"engine/formats",
     {"engine/base", "engine/io", "engine/formats/safetensors", "engine/formats/stored",
      "engine/formats/gguf", "engine/formats/llama2c"}},
    {"engine/tokenizer",
     {"engine/base", "engine/tokenizer/files", "engine/tokenizer/text", "engine/tokenizer/models",
      "engine/tokenizer/pretokenizers", "engine/tokenizer/normalizers"}},
    {"engine/model",
     {"engine/base", "engine/io", "engine/tensor", "engine/formats/stored", "engine/kernels",
      "engine/kv", "engine/adapter", "engine/ops", "engine/formats", "engine/model/families"}},
    {"engine/constrain", {"engine/base", "engine/io", "engine/tokenizer"}},
    {"engine/constrain/absent", {"engine/constrain"}},
    {"engine/tokenizer/readers",
     {"engine/base", "engine/tokenizer/files", "engine/tokenizer/text", "engine/tokenizer/models",
      "engine/tokenizer/pretokenizers", "engine/tokenizer/normalizers", "engine/tokenizer"}},
    {"engine/tokenizer/training",
     {"engine/base", "engine/tokenizer/text", "engine/tokenizer/pretokenizers",
      "engine/tokenizer"}},
    {"engine/loop",
     {"engine/base", "engine/io", "engine/sampling", "engine/kernels", "engine/kv", "engine/api",
      "engine/ops", "engine/sched", "engine/tokenizer", "engine/constrain", "engine/model"}},
    {"engine/tools",
     {"engine/base", "engine/io", "engine/tensor", "engine/formats/safetensors",
      "engine/formats/stored", "engine/kv", "engine/adapter", "engine/ops", "engine/formats",
      "engine/model"}},
    {"engine",
     {"engine/base", "engine/io", "engine/sampling", "engine/chat", "engine/chat/answers",
      "engine/kernels", "engine/api", "engine/ops", "engine/formats", "engine/tokenizer",
      "engine/constrain", "engine/model", "engine/loop"}},
    {"engine/examples", {"engine/base", "engine/formats", "engine"}},
    {"training/data/parquet", {"engine/base", "engine/io"}},
    {"training/checkpoint", {"engine/base", "engine/io", "engine/formats/safetensors"}},
    {"training/observe",
     {"engine/base", "engine/io", "engine/tensor", "engine/kernels", "engine/ops"}},
    {"training/ops", {"engine/base", "engine/tensor", "engine/kernels", "engine/ops"}},
    {"training/optim", {"engine/base", "engine/tensor", "engine/kernels", "engine/ops"}},
    {"training/data", {"engine/base", "engine/io", "engine/chat", "engine/tokenizer"}},
    {"training/program",
     {"engine/base", "engine/adapter", "engine/ops", "engine/model/families", "engine/model",
      "training/observe", "training/ops"}},
    {"training/lora",
     {"engine/base", "engine/io", "engine/sampling", "engine/adapter", "engine/model/families",
      "engine/model", "training/program"}},
    {"training/spec",
     {"engine/base", "engine/io", "engine/tensor", "engine/model/families", "training/optim",
      "training/data", "training/program", "training/lora"}},
    {"training/step",
     {"engine/base", "engine/formats/stored", "engine/ops", "engine/formats",
      "engine/model/families", "engine/model", "training/ops", "training/optim", "training/data",
      "training/program", "training/lora", "training/spec"}},
    {"training/setup",
     {"engine/base", "engine/io", "engine/chat", "engine/formats/stored", "engine/kernels",
      "engine/adapter", "engine/ops", "engine/formats", "engine/tokenizer", "engine/model/families",
      "engine/model", "engine/tools", "training/data/parquet", "training/ops", "training/data",
      "training/program", "training/lora", "training/spec", "training/step"}},
    {"training/plan", {"engine/base", "engine/model/families", "training/spec", "training/setup"}},
    {"training/run",
     {"engine/base", "engine/io", "engine/sampling", "engine/kernels", "engine/adapter",
      "engine/ops", "engine/formats", "engine/tokenizer", "engine/model", "engine/tools",
      "training/checkpoint", "training/observe", "training/data", "training/lora", "training/spec",
      "training/setup", "training/plan"}},
    {"training/examples",
     {"engine/kernels", "engine/model/families", "training/data", "training/step"}},
    {"convert/orbax", {"engine/base", "engine/io", "engine/tensor"}},
    {"convert/spec", {"engine/base", "engine/io"}},
    {"convert/tensors",
     {"engine/base", "engine/io", "engine/tensor", "engine/formats/safetensors",
      "engine/formats/stored", "engine/formats", "engine/model/families", "engine/model",
      "engine/tools", "convert/spec"}},
    {"convert/work",
     {"engine/base", "engine/io", "engine/formats/safetensors", "engine/formats/stored",
      "engine/ops", "convert/spec", "convert/tensors"}},
    {"convert/formats/gguf",
     {"engine/base", "engine/io", "engine/tensor", "engine/tokenizer/files", "engine/formats/gguf",
      "engine/formats", "engine/tokenizer", "engine/model/families", "engine/tokenizer/readers",
      "convert/spec", "convert/tensors", "convert/work"}},
    {"convert/formats/hf",
     {"engine/base", "engine/io", "engine/formats", "convert/spec", "convert/tensors",
      "convert/work"}},
    {"convert/formats/maxtext",
     {"engine/base", "engine/io", "engine/tensor", "engine/model/families", "convert/orbax",
      "convert/spec", "convert/tensors", "convert/work"}},
    {"convert/sources",
     {"engine/base", "engine/io", "engine/tensor", "engine/formats/safetensors", "engine/formats",
      "convert/orbax", "convert/spec", "convert/tensors", "convert/work",
      "convert/formats/maxtext"}},
    {"convert/formats/peft",
     {"engine/base", "engine/io", "engine/tensor", "engine/formats/safetensors", "engine/adapter",
      "engine/model/families", "engine/model", "convert/spec", "convert/tensors", "convert/work",
      "convert/formats/gguf", "convert/sources"}},
    {"convert/formats",
     {"engine/base", "engine/formats", "convert/spec", "convert/tensors", "convert/work",
      "convert/formats/gguf", "convert/formats/hf", "convert/formats/maxtext", "convert/sources",
      "convert/formats/peft"}},
    {"convert/verify",
     {"engine/base", "engine/io", "engine/adapter", "engine/ops", "engine/formats", "engine/model",
      "engine/tools", "convert/orbax", "convert/spec", "convert/tensors", "convert/work",
      "convert/formats/hf", "convert/sources", "convert/formats"}},
    {"convert",
     {"engine/base", "engine/io", "engine/tensor", "engine/adapter", "engine/ops", "engine/formats",
      "engine/model", "engine/tools", "convert/spec", "convert/tensors", "convert/work",
      "convert/sources", "convert/formats", "convert/verify"}},
    {"server/database", {"engine/base"}},
    {"server/http/syntax", {"engine/base"}},
    {"server/http", {"engine/base", "server/http/syntax"}},
    {"server/jobs", {"engine/base", "engine/io", "server/database"}},
    {"server/files",
     {"engine/base", "server/database", "server/http/syntax", "server/http", "server/jobs"}},
    {"server/keys", {"engine/base", "server/database", "server/http"}},
    {"server/metrics", {"engine/kv", "engine"}},
    {"server/models",
     {"engine/base", "engine/io", "engine/hub", "engine/api", "engine/formats", "engine/model",
      "engine", "convert/work", "server/database", "server/jobs", "server/keys", "config"}},
    {"server/wire",
     {"engine/base", "engine/io", "engine/chat", "engine/tokenizer", "engine/constrain", "engine",
      "training/spec"}},
    {"server/admission",
     {"engine/base", "engine", "server/http", "server/keys", "server/metrics", "server/models"}},
    {"server/respond",
     {"engine/base", "engine/chat/answers", "engine", "server/http", "server/wire"}},
    {"server/fine_tuning",
     {"engine/base", "engine/io", "engine/adapter", "engine/model", "training/setup",
      "convert/work", "server/jobs", "server/files", "server/models", "server/wire"}},
    {"server/pipeline",
     {"engine/base", "engine/io", "engine/hub", "training/spec", "convert/formats", "server/jobs"}},
    {"server/handlers",
     {"engine/base", "engine/chat", "engine/chat/answers", "engine/tokenizer", "engine/constrain",
      "engine", "training/data", "training/spec", "server/http/syntax", "server/http",
      "server/jobs", "server/files", "server/metrics", "server/models", "server/wire",
      "server/admission", "server/respond", "server/fine_tuning", "server/keys"}},
    {"server/handlers/admin",
     {"engine/base", "training/spec", "convert/spec", "convert/formats", "server/jobs",
      "server/models", "server/wire", "server/respond", "server/pipeline", "server/keys",
      "server/handlers"}},
    {"server/app", {"engine/base",        "engine/io",       "engine/kernels",   "engine/api",
                    "training/observe",   "training/plan",   "convert/spec",     "convert/work",
                    "server/http",        "server/jobs",     "server/files",     "server/metrics",
                    "server/models",      "server/wire",     "server/admission", "server/respond",
                    "server/fine_tuning", "server/pipeline", "server/handlers",  "config",
                    "server/keys"}},
    {"server/cli",
     {"engine/base",
      "engine/io",
      "engine/tensor",
      "engine/hub",
      "engine/kernels",
      "engine/api",
      "engine/ops",
      "engine/formats",
      "engine/tokenizer",
      "engine/constrain",
      "engine/model",
      "engine/tokenizer/training",
      "engine/tools",
      "engine",
      "training/checkpoint",
      "training/observe",
      "training/spec",
      "training/setup",
      "training/plan",
      "training/run",
      "convert/orbax",
      "convert/spec",
      "convert/tensors",
      "convert/sources",
      "convert/formats/maxtext",
      "convert/formats",
      "convert/verify",
      "convert",
      "server/jobs",
      "server/keys",
      "server/models",
      "server/wire",
      "server/pipeline",
      "server/handlers",
      "server/app",
      "config",
      "bench"}},
    {"server", {"server/cli"}},
    {"config", {"engine/base", "engine/io", "engine/formats"}},
    {"bench/models",
     {"engine/base", "engine/io", "engine/tensor", "engine/formats/safetensors",
      "engine/model/families"}},
    {"bench",
     {"engine/base", "engine/io", "engine/sampling", "engine/tensor", "engine/chat",
      "engine/kernels", "engine/adapter", "engine/ops", "engine/tokenizer", "engine/model/families",
      "engine/model", "engine/api", "engine/constrain", "engine", "training/ops", "training/optim", "training/lora", "training/step",
      "convert/orbax", "convert/formats/maxtext", "bench/models"}},
    {"tests", {"*"}},
};

// Where a third-party header may be included; `prefix` is the beginning of its include path.
struct DoorRule {
  std::string_view prefix;
  std::span<const std::string_view> rooms;  // folders or files without extension; "*": anywhere
  bool only_in_sources = false;             // a header would expose it to every includer
};

namespace doors {
using Names = std::string_view;
inline constexpr std::array kAnywhere{Names("*")};
inline constexpr std::array kLog{Names("engine/base/log")};
inline constexpr std::array kBoost{Names("server/http"), Names("server/app"), Names("engine/hub")};
// engine/io: SHA-256 of libcrypto. The TLS tests act as clients.
inline constexpr std::array kOpenSsl{Names("server/http"), Names("server/app"), Names("engine/hub"),
                                     Names("engine/io"), Names("tests/server/http")};
// The tests of the job store write databases that the store must refuse.
inline constexpr std::array kSqlite{Names("server/database"), Names("tests/server/jobs")};
inline constexpr std::array kCli{Names("server/cli")};
inline constexpr std::array kPrometheus{Names("server/metrics")};
inline constexpr std::array kYaml{Names("config"), Names("training/spec"), Names("convert/spec"),
                                  Names("server/pipeline/spec")};
// Constraints by regular expressions are tested against PCRE2.
inline constexpr std::array kUnicode{Names("engine/tokenizer"), Names("tests/engine/constrain")};
inline constexpr std::array kZstd{Names("engine/io"), Names("convert"),
                                  Names("training/data/parquet/codecs")};
// Compression of Parquet pages; zlib also computes their CRC.
inline constexpr std::array kPageCodecs{Names("training/data/parquet/codecs")};
inline constexpr std::array kMpi{Names("training/dist")};
inline constexpr std::array kEigen{Names("training"), Names("tests")};
// bench measures the machine's roof with its own intrinsics. The tests of the vector functions
// include those in a target region of their own.
inline constexpr std::array kIntrinsics{Names("engine/kernels"), Names("tests/engine/kernels"),
                                        Names("bench")};
inline constexpr std::array kGoogleTest{Names("tests")};
inline constexpr std::array kGoogleBenchmark{Names("bench")};
}  // namespace doors

inline constexpr std::array<DoorRule, 23> kDoorRules{{
    {"nlohmann/json_fwd.hpp", doors::kAnywhere},
    {"nlohmann/", doors::kAnywhere, true},
    {"simdjson.h", doors::kAnywhere, true},
    {"spdlog/", doors::kLog},
    {"boost/", doors::kBoost},
    {"openssl/", doors::kOpenSsl},
    {"sqlite3.h", doors::kSqlite},
    {"CLI/", doors::kCli},
    {"prometheus/", doors::kPrometheus},
    {"yaml-cpp/", doors::kYaml, true},
    {"pcre2.h", doors::kUnicode, true},
    {"unicode/", doors::kUnicode, true},
    {"zstd.h", doors::kZstd},
    {"zstd_errors.h", doors::kZstd},
    {"snappy.h", doors::kPageCodecs},
    {"zlib.h", doors::kPageCodecs},
    {"mpi.h", doors::kMpi},
    {"Eigen/", doors::kEigen},
    {"immintrin.h", doors::kIntrinsics},
    {"cpuid.h", doors::kIntrinsics},
    {"gtest/", doors::kGoogleTest},
    {"gmock/", doors::kGoogleTest},
    {"benchmark/", doors::kGoogleBenchmark},
}};

// Headers of the operating system and of C: allowed everywhere.
inline constexpr std::array<std::string_view, 26> kSystemHeaders{
    "sys/",     "linux/",    "netinet/", "arpa/",     "unistd.h", "fcntl.h",  "signal.h",
    "stdlib.h", "stdio.h",   "string.h", "time.h",    "errno.h",  "locale.h", "wctype.h",
    "wchar.h",  "ctype.h",   "sched.h",  "pthread.h", "poll.h",   "spawn.h",  "dirent.h",
    "pwd.h",    "termios.h", "malloc.h", "netdb.h",   "dlfcn.h",
};

}  // namespace tandem::tests
