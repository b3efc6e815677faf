# A cluster, two buckets and a registry. Terraform and OpenTofu read the same files. Another cloud replaces this file
# and keeps the variables and outputs.
terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = var.region
}

resource "google_container_cluster" "cluster" {
  name                     = var.cluster_name
  location                 = var.region
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = var.deletion_protection

  workload_identity_config {
    workload_pool = "${var.project_id}.svc.id.goog"
  }
}

resource "google_container_node_pool" "training" {
  name     = "training"
  cluster  = google_container_cluster.cluster.id
  location = var.region

  autoscaling {
    min_node_count = 0
    max_node_count = var.training_nodes
  }

  node_config {
    machine_type = var.training_machine
    # Training resumes after a preemption.
    spot         = true
    oauth_scopes = ["https://www.googleapis.com/auth/cloud-platform"]
  }
}

resource "google_container_node_pool" "serving" {
  name     = "serving"
  cluster  = google_container_cluster.cluster.id
  location = var.region

  autoscaling {
    min_node_count = 1
    max_node_count = var.serving_nodes
  }

  node_config {
    machine_type = var.serving_machine
    oauth_scopes = ["https://www.googleapis.com/auth/cloud-platform"]
  }
}

resource "google_storage_bucket" "artifacts" {
  name                        = var.artifacts_bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
}

resource "google_storage_bucket" "datasets" {
  name                        = var.datasets_bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
}

resource "google_artifact_registry_repository" "images" {
  repository_id = var.repo_name
  location      = var.region
  format        = "DOCKER"
}
