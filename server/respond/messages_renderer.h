#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/respond/answer_renderer.h"

namespace tandem::server {

// Writes the answer of /v1/messages: one message, or its events.
//
// Reasoning and text become blocks while they are written, and so do calls if `streams_calls`.
// Other calls become blocks when they have ended, so that no client runs a call that turns out to
// be text (CallDropped): its text then continues the open block. A call that the token limit cuts
// becomes the last block.
class MessagesRenderer : public AnswerRenderer {
 public:
  // `streams_calls`: a begun call is never dropped, because a grammar holds it.
  MessagesRenderer(ReplyShape shape, ResponseWriter writer, bool streams_calls);

  bool has_pings() const override { return true; }
  void SendPing() override;

 protected:
  void OnBegin() override;
  void OnPart(const engine::AnswerEvent& part) override;
  void OnEnd(const AnswerEnd& end) override;
  void OnFailure(const ErrorReply& reply) override;

 private:
  enum class Block { kNone, kThinking, kText, kCall };
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };

  void Handle(const engine::ReasoningPart& part);
  void Handle(const engine::TextPart& part);
  void Handle(const engine::CallBegin& call);
  void Handle(const engine::CallArguments& arguments);
  void Handle(const engine::CallEnd& end);
  void Handle(const engine::CallDropped& dropped);
  void Handle(const engine::AnswerFinish&) {}

  // Opens a block of this kind unless it is open. Closes another one first.
  void Open(Block block);
  void Close();
  void AddText(Block block, std::string_view text);
  void ShowCall(const Call& call, bool is_complete);
  void OpenCall(std::string_view id, std::string_view name);
  void SendArguments(std::string_view arguments);
  void Send(std::string_view event, std::string_view data);
  // Begins `{"type":"…","index":N`.
  std::string BlockEvent(std::string_view type) const;
  void AppendUsage(std::string& out) const;

  const bool streams_calls_;
  std::optional<EventStream> stream_;  // unset: one body
  Block open_ = Block::kNone;
  int n_blocks_ = 0;          // begun
  std::string text_;          // body: of the open block
  std::string content_;       // body: the closed blocks, with commas between
  std::optional<Call> call_;  // that has begun and is not shown yet
};

}  // namespace tandem::server
