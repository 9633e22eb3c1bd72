//! Every file that names an image of a server names the same version.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails with a message")]

use std::{fs, path::Path};

const FILES: [&str; 6] = [
    "compose.yaml",
    ".env.example",
    "examples/kubernetes/components/single-servers/postgres.yaml",
    "examples/kubernetes/components/single-servers/rabbitmq.yaml",
    "examples/kubernetes/components/rabbitmq-operator/cluster.yaml",
    "examples/one-file/README.md",
];

/// A service that runs on another version than the tests is a system that nobody has tried.
#[test]
fn every_file_names_the_images_of_the_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    for file in FILES {
        let text = read(file);
        let named = images(&text);
        assert!(!named.is_empty(), "{file} names no image of a server");
        for image in named {
            assert!(
                testbed::IMAGES.contains(&image),
                "{file} names {image}, and not one of {:?}",
                testbed::IMAGES
            );
        }
    }
    let mailer = read("examples/mailer/tests/containers.rs");
    for image in testbed::IMAGES {
        let (name, tag) = image.split_once(':').unwrap();
        assert!(
            mailer.contains(&format!("GenericImage::new(\"{name}\", \"{tag}\")")),
            "mailer does not test with {image}"
        );
    }
    // The operator's image has another name and the same version.
    let [postgres, _] = testbed::IMAGES;
    let (major, debian) = postgres.rsplit_once(':').unwrap().1.split_once('-').unwrap();
    let operator = format!("postgresql:{major}-standard-{debian}");
    assert!(
        read("examples/kubernetes/components/cloudnative-pg/cluster.yaml").contains(&operator),
        "no {operator}"
    );
}

/// Each `postgres:TAG` and `rabbitmq:TAG`. A number that begins with 5 is a port.
fn images(text: &str) -> Vec<&str> {
    let names = ["postgres:", "rabbitmq:"].into_iter();
    let found = names.flat_map(|name| text.match_indices(name).map(|(at, _)| (&text[at..], name.len())));
    found
        .filter(|(rest, name)| rest[*name..].starts_with(|c| ('1'..='4').contains(&c)))
        .filter_map(|(rest, _)| {
            rest.split(|c: char| !(c.is_ascii_alphanumeric() || ":.-".contains(c))).next()
        })
        .collect()
}
