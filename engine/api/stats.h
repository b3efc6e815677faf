#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/histogram.h"

namespace tandem::engine {

struct EngineStats {
  int64_t requests_running = 0;  // sequences in the batch
  int64_t requests_waiting = 0;  // sequences without a place, and requests just submitted
  int64_t batch_running = 0;     // of requests_running: of batch requests
  int64_t batch_waiting = 0;     // of requests_waiting, except requests just submitted
  int64_t requests_queued = 0;   // requests that have not had a place yet; max_queue bounds them
  int64_t kv_blocks_total = 0;
  int64_t kv_blocks_used = 0;  // blocks with references
  int64_t prompt_tokens_total = 0;
  int64_t generation_tokens_total = 0;
  int64_t prefix_query_tokens_total = 0;
  int64_t prefix_hit_tokens_total = 0;
  int64_t preemptions_total = 0;
  int64_t disk_blocks = 0;  // blocks of prefixes on disk (EngineOptions::prefix_dir)
  int64_t disk_blocks_read_total = 0;
  int64_t disk_blocks_written_total = 0;
  int64_t draft_tokens_total = 0;           // guesses that were computed
  int64_t accepted_draft_tokens_total = 0;  // of those, right
  int64_t draft_passes_total = 0;           // forward passes of the draft model
  double draft_seconds_total = 0;           // in them
  int64_t steps_total = 0;
  int64_t idle_releases_total = 0;  // see EngineOptions::idle_release
  int64_t idle_blocks_total = 0;    // given back by EngineOptions::prefix_idle
  int64_t kv_bytes = 0;             // with the states
  int64_t states_total = 0;         // slots of models with recurrent layers; 0: the model has none
  int64_t states_used = 0;          // held by sequences
  int64_t state_snapshots = 0;      // for prefix reuse
  int64_t scratch_bytes = 0;
  int64_t max_seqs = 0;      // places in the batch
  int64_t max_adapters = 0;  // limit of different adapters in one batch
  // Adapter names of requests with a sequence in the batch, and of those without. A name may be in
  // both.
  std::vector<std::string> running_adapters;
  std::vector<std::string> waiting_adapters;
  double requests_ended_per_second = 0;  // over the last seconds, with any outcome
  // The loop updates this at least every second, even when idle, and between any two steps.
  std::chrono::steady_clock::time_point heartbeat;
};

// Totals since the start, in seconds and tokens. Only completed requests count.
struct EngineHistograms {
  EngineHistograms();
  void Add(const EngineHistograms& other);

  Histogram time_to_first_token_s;
  Histogram inter_token_s;
  Histogram e2e_s;
  Histogram queue_s;
  Histogram prefill_s;
  Histogram decode_s;
  Histogram inference_s;  // prefill and decode
  Histogram prompt_tokens;
  Histogram generation_tokens;  // of all choices together
  Histogram params_n;
  Histogram params_max_tokens;  // as requested
  Histogram step_tokens;        // prompt and generated tokens of one step
};

}  // namespace tandem::engine
