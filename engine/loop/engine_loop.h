#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/base/mailbox.h"
#include "engine/base/thread_pool.h"
#include "engine/constrain/grammar.h"
#include "engine/kv/block_pool.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_index.h"
#include "engine/kv/state_cache.h"
#include "engine/kv/state_pool.h"
#include "engine/loop/draft_model.h"
#include "engine/loop/event_rate.h"
#include "engine/loop/kv_archive.h"
#include "engine/loop/loop_status.h"
#include "engine/loop/output.h"
#include "engine/loop/step.h"
#include "engine/ops/ops_context.h"
#include "engine/sched/scheduler.h"
#include "engine/speculation/draft_length.h"
#include "engine/speculation/guess_length.h"
#include "engine/speculation/prompt_lookup.h"

namespace tandem::engine {

// Commands from other threads to the loop.
struct SubmitCommand {
  RequestId id;
  GenerationRequest request;
  EventSink sink;
};
struct CancelCommand {
  RequestId id;
};
struct PauseCommand {
  RequestId id;
  bool paused = false;
};
struct EndAllCommand {
  std::string message;
  std::string reason = "shutting_down";
};
struct StopCommand {};
using LoopCommand =
    std::variant<SubmitCommand, CancelCommand, PauseCommand, EndAllCommand, StopCommand>;

// The engine's main loop: drain the inbox, plan, run, sample, commit, emit. Any thread may
// construct it; one thread, the engine thread, runs it and then owns everything inside.
class EngineLoop {
 public:
  using Clock = std::chrono::steady_clock;
  // Ends a request whose results are not numbers.
  static constexpr const char* kNotFinite =
      "the model produced logits that are not finite numbers; its weights may be damaged";
  // Message and reason of a request that ends because there was no memory for it.
  static constexpr const char* kOutOfMemory = "not enough memory for this request";
  static constexpr const char* kOutOfMemoryReason = "out_of_memory";

  // Throws kFailedPrecondition when memory is too small for one sequence. Borrows inbox and status.
  EngineLoop(const LoadedModel& model, const EngineOptions& options, Mailbox<LoopCommand>& inbox,
             LoopStatus& status);

  // Runs until a StopCommand, then cancels the remaining requests.
  void Run();

 private:
  struct Choice {
    Sampler sampler;
    ChoiceOutput output;
    std::optional<GrammarMatcher> matcher{};  // of the request's grammar, from the first draw on
    std::optional<Clock::time_point> last_token{};
    PromptLookup lookup{};
    int64_t n_looked_up = 0;  // tokens of the sequence that `lookup` has
    DraftLength draft_length{};
    std::unique_ptr<DraftModel::Text> draft_text{};  // with a draft model, from the first guess on
    GuessLength guess_length{};
    bool guessed_by_model = false;  // the last guess
  };
  struct Active {
    GenerationRequest request;  // without its prompt, which the scheduler owns
    std::shared_ptr<EventSink> sink;
    int64_t prompt_len = 0;
    std::vector<Choice> choices;
    int n_finished = 0;
    std::vector<TokenLogprob> scores;  // of the prompt, until sent
    int64_t n_scored = 0;            // scored prompt positions, the unpredicted first one included
    std::vector<double> hidden_sum;  // of the pooled positions before n_pooled; [hidden_dim]
    std::vector<TokenLogprob> next_scores;  // of next_tokens, until sent
    int64_t n_pooled = 0;  // positions before it are computed and, if pooled, added
    bool prompt_counted = false;
    std::optional<Clock::time_point> started{};  // first rows computed
    std::optional<Clock::time_point> first_token{};
    Clock::time_point last_token{};
    int64_t n_generated = 0;  // by all choices
  };
  struct Outgoing {
    std::shared_ptr<EventSink> sink;
    RequestId request;
    GenerationEvent event;
  };
  struct Sampled {
    RequestId request;
    int choice = 0;
    int64_t row = 0;      // of the logits
    int64_t n_draft = 0;  // rows of guesses after it
  };

  void OpenPrefixes(const KvCache::Shape& shape);
  static int64_t ArchiveBlocks(const KvCache::Shape& shape);
  void Drain();
  void Handle(SubmitCommand command);
  void RefuseSubmission(RequestId id, uint64_t client, const std::shared_ptr<EventSink>& sink,
                        const char* why);
  void Admit(RequestId id, GenerationRequest submitted, std::shared_ptr<EventSink> sink);
  void Handle(const CancelCommand& command);
  void Handle(const PauseCommand& command);
  void Handle(const EndAllCommand& command);
  void Handle(const StopCommand&) { stopping_ = true; }
  void ExpireDeadlines();
  std::chrono::milliseconds TimeToSleep() const;

  bool Step();
  bool PlanAndRun();
  void ReleaseIdleMemory();
  void ReleaseIdleBlocks();
  void CollectSlices(const BatchPlan& plan);
  void ScorePrompts();
  void TakeEmbeddings();
  void FinishEmbedding(Active& active, Sequence& sequence);
  void CountPrompt(Active& active);
  void SampleAndTake();
  void AddJobs(const Sequence& sequence, int64_t row, int64_t n_draft);
  bool AddConfirmedRows();
  void DrawAndTake();
  void ProposeDrafts(std::span<const Sampled> drawn);
  int64_t GuessRoom(const Active& active, const Choice& choice, const Sequence& sequence) const;
  std::vector<TokenId> LookUp(const Active& active, Choice& choice, const Sequence& sequence,
                              int64_t room);
  void AskDraftModel();
  void TimeStep(const BatchPlan& plan);
  bool AwaitsNextScores(Active& active, RequestId id, StepRunner::Job& job);
  void TakeToken(Active& active, Sampled who, StepRunner::Job& job);
  void EndWithoutToken(const Active& active, RequestId id);
  void SendDelta(const Active& active, RequestId id, Choice& choice);
  void FinishChoice(Active& active, Sequence& sequence, ChoiceOutput::End end);
  void FailStep(ErrorCode code, std::string_view message);
  void FailModel();
  void FailNewest();
  void EndWithoutMemory(RequestId id);
  void EndFailed(RequestId id, ErrorCode code, std::string_view message);

  static std::optional<Clock::time_point> EndsBy(const Active& active);
  void CountToken(Active& active, Choice& choice);
  RequestTimings TimingsOf(const Active& active, Clock::time_point now) const;
  void CountCompleted(const Active& active, const RequestTimings& timings);

  Active* Find(RequestId id);
  void Emit(const Active& active, RequestId id, GenerationEvent event);
  void End(RequestId id, RequestFinished how);
  void SendEvents();
  void PublishStatus();
  void ListAdapters();

  const LoadedModel model_;
  const EngineOptions options_;
  Mailbox<LoopCommand>& inbox_;
  LoopStatus& status_;

  ThreadPool pool_;
  OpsContext ops_;
  std::optional<KvCache> kv_;
  std::optional<BlockPool> blocks_;
  std::optional<StateCache> states_;
  std::optional<StatePool> state_pool_;  // only models with state
  std::optional<PrefixIndex> prefix_index_;
  std::optional<KvArchive> archive_;  // with EngineOptions::prefix_dir
  std::optional<StepRunner> runner_;
  std::optional<DraftModel> draft_;  // only with LoadedModel::draft
  StepTimes step_times_;             // of steps without prompts
  StepTimes draft_times_;            // of passes of the draft model
  bool only_decodes_ = false;        // the current step has no prompt
  std::optional<Scheduler> scheduler_;

  std::unordered_map<RequestId, std::unique_ptr<Active>> active_;
  int64_t n_deadlines_ = 0;  // active requests with a deadline
  int64_t n_adapted_ = 0;    // active requests with an adapter
  bool stopping_ = false;
  bool has_released_ = true;           // nothing was computed since memory was returned
  Clock::time_point next_age_{};       // of the blocks, for prefix_idle
  bool has_idle_blocks_ = false;       // the last step gave back as many as it may
  std::vector<LoopCommand> commands_;  // taken from the inbox
  size_t next_command_ = 0;            // first of commands_ not handled yet
  int64_t n_taken_ = 0;               // submissions taken from the inbox since the last publication
  std::vector<uint64_t> left_queue_;  // since then: the client of each request that left the queue
  EngineStats stats_;
  EngineHistograms histograms_;
  EventRate ends_;

  // State of the current step.
  Clock::time_point step_began_;
  Clock::time_point sampled_at_;
  std::vector<RequestId> step_requests_;
  std::vector<StepRunner::Slice> slices_;
  std::vector<StepRunner::Job> jobs_;
  std::vector<Sampled> sampled_;    // parallel to jobs_
  std::vector<Sampled> confirmed_;  // scratch of AddConfirmedRows
  struct Wanted {
    Sequence* sequence;
    Choice* choice;
  };
  std::vector<Wanted> wanted_;           // guesses of the draft model
  std::vector<DraftModel::Want> wants_;  // parallel to wanted_
  std::vector<RequestId> pooled_;        // requests whose embedding is complete
  std::vector<Outgoing> events_;
};

}  // namespace tandem::engine
