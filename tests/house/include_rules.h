#pragma once

#include <array>
#include <span>
#include <string_view>

// STYLE 2's table "who may include whom", as amended by DESIGN 4, as data. Change the table there
// and here in one commit, with the reason.
namespace tandem::tests {

// A room is a folder and everything below it that has no row of its own. It may include itself.
struct RoomRule {
  std::string_view room;
  std::span<const std::string_view> may_include;  // rooms, or single files; "*": everything
};

namespace rules {
using Names = std::string_view;

inline constexpr std::array<Names, 0> kBase{};
inline constexpr std::array kTensor{Names("engine/base")};
inline constexpr std::array kIo{Names("engine/base"), Names("engine/tensor")};
inline constexpr std::array kQuant{Names("engine/base"), Names("engine/tensor")};
inline constexpr std::array kKernels{Names("engine/base"), Names("engine/tensor"),
                                     Names("engine/quant/block_formats.h")};
inline constexpr std::array kOps{Names("engine/base"), Names("engine/tensor"),
                                 Names("engine/quant"), Names("engine/kernels")};
inline constexpr std::array kTokenizer{Names("engine/base")};
// Arguments of tool calls are JSON that came from outside.
inline constexpr std::array kChat{Names("engine/base"), Names("engine/io/json.h")};
inline constexpr std::array kConstraint{Names("engine/base"), Names("engine/tokenizer")};
inline constexpr std::array kSampling{Names("engine/base"), Names("engine/constraint"),
                                      Names("engine/kernels")};
inline constexpr std::array kFloor4{Names("engine/base"), Names("engine/tensor"),
                                    Names("engine/io")};  // kv, adapter
inline constexpr std::array kModel{
    Names("engine/base"),    Names("engine/tensor"), Names("engine/io"), Names("engine/quant"),
    Names("engine/kernels"), Names("engine/ops"),    Names("engine/kv"), Names("engine/adapter")};
// The scheduler never sees a tensor: that is what lets millions of random steps test it.
inline constexpr std::array kSched{Names("engine/base"), Names("engine/kv"),
                                   Names("engine/sampling/sampling_params.h")};
inline constexpr std::array kLoop{
    Names("engine"),          Names("engine/base"),       Names("engine/tensor"),
    Names("engine/io"),       Names("engine/quant"),      Names("engine/kernels"),
    Names("engine/ops"),      Names("engine/tokenizer"),  Names("engine/chat"),
    Names("engine/sampling"), Names("engine/constraint"), Names("engine/kv"),
    Names("engine/adapter"),  Names("engine/model"),      Names("engine/sched"),
    Names("engine/loop")};
// Not sched, loop, engine.h, nor each other.
inline constexpr std::array kFloor7{
    Names("engine/base"),     Names("engine/tensor"),     Names("engine/io"),
    Names("engine/quant"),    Names("engine/kernels"),    Names("engine/ops"),
    Names("engine/kv"),       Names("engine/adapter"),    Names("engine/model"),
    Names("engine/sampling"), Names("engine/constraint"), Names("engine/tokenizer"),
    Names("engine/chat")};  // training, convert
inline constexpr std::array kHttp{Names("engine/base")};
// Beside the server, not in the engine: nothing in there opens a socket, and URLs have one parser.
inline constexpr std::array kHub{Names("engine/base"), Names("engine/io"),
                                 Names("server/http/url.h")};
// engine.h speaks in SamplingParams, so those who fill a request may name them.
inline constexpr std::array kWire{
    Names("engine/base"),
    // Bodies are untrusted JSON: one parser bounds them all.
    Names("engine/io/json.h"), Names("engine/engine.h"), Names("engine/options.h"),
    Names("engine/sampling/sampling_params.h"), Names("engine/chat"), Names("engine/tokenizer"),
    Names("engine/constraint"), Names("training/spec.h"), Names("convert/spec.h")};
inline constexpr std::array kRespond{
    Names("engine/base"),       Names("engine/engine.h"),
    Names("engine/options.h"),  Names("engine/sampling/sampling_params.h"),
    Names("engine/chat"),       Names("engine/tokenizer"),
    Names("engine/constraint"), Names("server/http"),
    Names("server/wire")};
inline constexpr std::array kDatabase{Names("engine/base")};
inline constexpr std::array kJobs{Names("engine/base"), Names("server/database"),
                                  Names("training/spec.h"), Names("convert/spec.h")};
// Files are forms that arrive and answers that leave, so this room knows the http room's faces.
inline constexpr std::array kFiles{Names("engine/base"), Names("server/database"),
                                   Names("server/http"), Names("server/jobs/unique_fd.h")};
// It starts the program's own verbs, and speaks to other servers as the hub's client does.
inline constexpr std::array kPipeline{Names("engine/base"),     Names("engine/io"),
                                      Names("training/spec.h"), Names("training/explain.h"),
                                      Names("convert/spec.h"),  Names("server/jobs"),
                                      Names("server/hub"),      Names("server/http/url.h")};
inline constexpr std::array kHandlers{
    Names("engine/base"), Names("engine/engine.h"), Names("engine/options.h"),
    Names("engine/sampling/sampling_params.h"), Names("engine/chat"), Names("engine/tokenizer"),
    Names("engine/constraint"), Names("training/spec.h"),
    // /v1/render shows what training would learn, by the one that knows.
    Names("training/data/sample_encoder.h"), Names("convert/spec.h"), Names("convert/check_spec.h"),
    Names("convert/provenance.h"), Names("server/http"), Names("server/wire"),
    Names("server/respond"), Names("server/database"), Names("server/jobs"), Names("server/files"),
    Names("server/metrics.h"), Names("server/pipeline")};
inline constexpr std::array kBench{
    Names("engine"),          Names("engine/base"),       Names("engine/tensor"),
    Names("engine/io"),       Names("engine/quant"),      Names("engine/kernels"),
    Names("engine/ops"),      Names("engine/tokenizer"),  Names("engine/chat"),
    Names("engine/sampling"), Names("engine/constraint"), Names("engine/kv"),
    Names("engine/adapter"),  Names("engine/model"),      Names("engine/sched"),
    Names("engine/loop"),     Names("training"),          Names("convert")};
inline constexpr std::array kTop{Names("*")};
}  // namespace rules

inline constexpr std::array<RoomRule, 33> kRoomRules{{
    {"engine/base", rules::kBase},
    {"engine/tensor", rules::kTensor},
    {"engine/io", rules::kIo},
    {"engine/quant", rules::kQuant},
    {"engine/kernels", rules::kKernels},
    {"engine/ops", rules::kOps},
    {"engine/tokenizer", rules::kTokenizer},
    {"engine/chat", rules::kChat},
    {"engine/constraint", rules::kConstraint},
    {"engine/sampling", rules::kSampling},
    {"engine/kv", rules::kFloor4},
    {"engine/adapter", rules::kFloor4},
    {"engine/model", rules::kModel},
    {"engine/sched", rules::kSched},
    {"engine/loop", rules::kLoop},
    {"engine", rules::kLoop},  // engine.h, options.h
    {"training", rules::kFloor7},
    {"convert", rules::kFloor7},
    {"server/http", rules::kHttp},
    {"server/hub", rules::kHub},
    {"server/wire", rules::kWire},
    {"server/respond", rules::kRespond},
    {"server/database", rules::kDatabase},
    {"server/jobs", rules::kJobs},
    {"server/files", rules::kFiles},
    {"server/pipeline", rules::kPipeline},
    {"server/handlers", rules::kHandlers},
    {"server/cli", rules::kTop},
    {"server", rules::kTop},  // app, metrics, routes, main: where everything meets
    {"config", rules::kTop},
    {"bench", rules::kBench},
    {"tests", rules::kTop},
    {"", rules::kBase},
}};

// Third-party headers come in through doors: `prefix` of the include, where it may stand.
struct DoorRule {
  std::string_view prefix;
  std::span<const std::string_view> rooms;  // folders or files without extension; "*": anywhere
  bool only_in_sources = false;             // never in a header: it would leak into a face
};

namespace doors {
using Names = std::string_view;
inline constexpr std::array kAnywhere{Names("*")};
inline constexpr std::array kLog{Names("engine/base/log")};
inline constexpr std::array kBoost{Names("server/http"), Names("server/app"), Names("server/hub")};
// io: SHA-256 is libcrypto's. The tests of TLS are its clients.
inline constexpr std::array kOpenSsl{Names("server/http"), Names("server/app"), Names("server/hub"),
                                     Names("engine/io"), Names("tests/server/http")};
// The tests of the job store write databases that it must refuse.
inline constexpr std::array kSqlite{Names("server/database"), Names("tests/server/jobs")};
inline constexpr std::array kCli{Names("server/cli")};
inline constexpr std::array kPrometheus{Names("server/metrics")};
inline constexpr std::array kYaml{Names("config"), Names("training/spec"), Names("convert/spec"),
                                  Names("server/pipeline/spec")};
inline constexpr std::array kUnicode{Names("engine/tokenizer")};
inline constexpr std::array kZstd{Names("engine/io"), Names("convert"),
                                  Names("training/data/parquet/codecs")};
// The compressions of Parquet pages; zlib is also the CRC of pages.
inline constexpr std::array kPageCodecs{Names("training/data/parquet/codecs")};
inline constexpr std::array kMpi{Names("training/dist")};
inline constexpr std::array kEigen{Names("training"), Names("tests")};
// bench measures the machine's roof, which has to be written in its own instructions.
// The tests of the vector functions include them in a region of their own.
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

// Headers of the operating system and of C: wherever they are needed.
inline constexpr std::array<std::string_view, 26> kSystemHeaders{
    "sys/",     "linux/",    "netinet/", "arpa/",     "unistd.h", "fcntl.h",  "signal.h",
    "stdlib.h", "stdio.h",   "string.h", "time.h",    "errno.h",  "locale.h", "wctype.h",
    "wchar.h",  "ctype.h",   "sched.h",  "pthread.h", "poll.h",   "spawn.h",  "dirent.h",
    "pwd.h",    "termios.h", "malloc.h", "netdb.h",   "dlfcn.h",
};

}  // namespace tandem::tests
