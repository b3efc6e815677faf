variable "project_id" {
  type        = string
  description = "Project of the cloud"
}

variable "region" {
  type        = string
  description = "Region of the cluster, buckets and registry"
}

variable "cluster_name" {
  type        = string
  description = "Name of the cluster"
}

variable "repo_name" {
  type        = string
  description = "Repository of the images"
}

variable "artifacts_bucket" {
  type        = string
  description = "Bucket of checkpoints"
}

variable "datasets_bucket" {
  type        = string
  description = "Bucket of data sets"
}

variable "training_machine" {
  type        = string
  description = "Machine of the training nodes"
  default     = "c3-standard-44"
}

variable "training_nodes" {
  type        = number
  description = "Most training nodes of a zone"
  default     = 4
}

variable "serving_machine" {
  type        = string
  description = "Machine of the serving nodes"
  default     = "c3-standard-8"
}

variable "serving_nodes" {
  type        = number
  description = "Most serving nodes of a zone"
  default     = 4
}

variable "deletion_protection" {
  type        = bool
  description = "Refuse to destroy the cluster"
  default     = true
}
