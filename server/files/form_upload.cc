#include "server/files/form_upload.h"

#include <algorithm>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"

namespace tandem::server {
namespace {

Error BadForm(const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, message).WithReason("invalid_value");
}

}  // namespace

std::shared_ptr<FormUpload> FormUpload::Open(FileStore& store, std::string_view content_type,
                                             std::vector<std::string> fields,
                                             std::function<void()> has_room) {
  const FormType type = ParseFormType(content_type);
  if (!type.is_form_data) {
    throw Error(ErrorCode::kInvalidArgument,
                "this route needs 'content-type: multipart/form-data', got " +
                    (content_type.empty() ? std::string("none")
                                          : "'" + std::string(content_type.substr(0, 60)) + "'"))
        .WithReason("unsupported_media_type");
  }
  if (!type.boundary) {
    throw BadForm("the content type of a form needs a boundary of 1 to 70 characters");
  }
  return std::shared_ptr<FormUpload>(
      new FormUpload(store, *type.boundary, std::move(fields), std::move(has_room)));
}

FormUpload::FormUpload(FileStore& store, std::string_view boundary, std::vector<std::string> fields,
                       std::function<void()> has_room)
    : store_(store),
      wanted_(std::move(fields)),
      has_room_(std::move(has_room)),
      parser_(boundary, {[this](const PartHead& head) { OnPart(head); },
                         [this](std::string_view bytes) { OnData(bytes); },
                         [this] {
                           field_ = nullptr;
                           is_in_file_ = false;
                         }}) {}

bool FormUpload::Write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  waiting_ += bytes;
  PostPump();
  wants_room_ = waiting_.size() >= kMaxWaiting;
  return !wants_room_;
}

void FormUpload::Finish(std::function<void(UploadedForm)> on_form,
                        std::function<void(std::exception_ptr)> on_fault) {
  const std::lock_guard lock(mutex_);
  on_form_ = std::move(on_form);
  on_fault_ = std::move(on_fault);
  PostPump();
}

// REQUIRES: mutex_ held. A stopping store refuses the task; the upload is then destroyed, and its
// client gets the answer of an abandoned request.
void FormUpload::PostPump() {
  if (is_pumping_) return;
  is_pumping_ = store_.Post([self = shared_from_this()] { self->Pump(); });
}

void FormUpload::Pump() {
  for (;;) {
    std::string bytes;
    bool tells_of_room = false;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        is_pumping_ = false;
        if (!on_form_) return;
        break;
      }
      bytes.swap(waiting_);
      tells_of_room = std::exchange(wants_room_, false);
    }
    if (tells_of_room && has_room_) has_room_();
    Consume(bytes);
  }
  End();
}

// Keeps the first fault for the answer and ignores the rest of the form.
void FormUpload::Consume(std::string_view bytes) {
  if (fault_) return;
  fault_ = FaultOf([&] { parser_.Feed(bytes); });
  if (fault_) form_.file.reset();
}

void FormUpload::OnPart(const PartHead& head) {
  if (head.name == "file") {
    if (form_.has_file_part) throw BadForm("the form has two parts named 'file'").WithParam("file");
    form_.has_file_part = true;
    form_.filename = head.filename;
    if (!head.filename) return;
    form_.file = store_.BeginFile();
    is_in_file_ = true;
    return;
  }
  if (std::find(wanted_.begin(), wanted_.end(), head.name) == wanted_.end()) {
    form_.unknown.push_back(head.name);
    return;
  }
  const auto [field, is_new] = form_.fields.emplace(head.name, "");
  if (!is_new) {
    throw BadForm("the form has two parts named '" + head.name + "'").WithParam(head.name);
  }
  field_ = &field->second;
}

void FormUpload::OnData(std::string_view bytes) {
  if (is_in_file_) {
    const auto n = static_cast<int64_t>(bytes.size());
    if (n > store_.max_file_bytes() - form_.file->bytes()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the file is longer than " + std::to_string(store_.max_file_bytes()) + " bytes")
          .WithParam("file")
          .WithReason("request_too_large");
    }
    form_.file->Write(bytes);
  } else if (field_ != nullptr) {
    if (field_->size() + bytes.size() > kMaxFieldBytes) {
      throw BadForm("a form field is longer than " + std::to_string(kMaxFieldBytes) + " bytes");
    }
    *field_ += bytes;
  }
}

void FormUpload::End() {
  std::function<void(UploadedForm)> on_form;
  std::function<void(std::exception_ptr)> on_fault;
  {
    const std::lock_guard lock(mutex_);
    on_form.swap(on_form_);
    on_fault.swap(on_fault_);
  }
  parser_.Finish();
  if (!fault_ && parser_.fault()) fault_ = std::make_exception_ptr(BadForm(*parser_.fault()));
  if (!fault_) {
    fault_ = FaultOf([&] { on_form(std::move(form_)); });
    if (!fault_) return;
  }
  form_.file.reset();
  on_fault(fault_);
}

}  // namespace tandem::server
